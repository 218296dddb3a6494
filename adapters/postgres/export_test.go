package postgres

import "io/fs"

// MigrateFiles replaces the numbered migrations.
func MigrateFiles(folder fs.FS) MigrateOption {
	return func(m *migrator) {
		files, err := readMigrations(folder)
		if err != nil {
			panic(err)
		}
		m.files = files
	}
}
