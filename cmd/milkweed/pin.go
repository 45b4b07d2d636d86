package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/blob"
)

// A source may be a link to the current generation of a dataset: a symbolic link to a directory, or in a
// bucket a pointer, an object that contains the name of a directory beside it. The mount then pins the
// generation that the link names: it opens the directory of the generations, and shows that one.

// A pin is the source that a mount opens, and the generation in it that it shows first.
type pin struct {
	root       config.Source // the source itself, or the directory of the generations
	generation string        // a directory in root; "": there are no generations
	pointer    string        // the name in root of the pointer; "": the source is a directory or a symbolic link
}

// maxPointer is the size in bytes of the largest pointer.
const maxPointer = 1024

// openPinned opens the source of c, or if that is a link the directory of the generations. With
// source.generation, the source may also be that directory. The caller closes the source.
func openPinned(ctx context.Context, c *config.Config, log *slog.Logger) (source, pin, error) {
	p, err := pinDir(c)
	if err != nil {
		return nil, p, err
	}
	s, err := openSource(ctx, p.root, log)
	if c.Source.URL != "" && errors.Is(err, fs.ErrNotExist) { // no key is below it, so that it may be a pointer
		if b, pinned := openPointer(ctx, c.Source, log); b != nil {
			s, p, err = b, pinned, nil
			p.generation, err = readPointer(ctx, b, p.pointer)
		}
	}
	if err != nil {
		if s != nil {
			s.Close()
		}
		return nil, p, err
	}
	if c.Source.Generation != "" {
		p.generation = c.Source.Generation
	}
	return s, p, nil
}

// openShown opens the source that c shows first. The caller closes it.
func openShown(ctx context.Context, c *config.Config, log *slog.Logger) (source, pin, error) {
	s, p, err := openPinned(ctx, c, log)
	if err != nil || p.generation == "" {
		return s, p, err
	}
	s.Close()
	s, err = openSource(ctx, p.shown(), log)
	return s, p, err
}

// pinDir follows a symbolic link. There are no generations if its target is the root of a file system,
// so that what is beside it is elsewhere, or if the mount point or a tier is beside it.
func pinDir(c *config.Config) (pin, error) {
	p := pin{root: c.Source}
	if info, err := os.Lstat(c.Source.Path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		return p, nil // opening the source reports the error
	}
	target, err := filepath.EvalSymlinks(c.Source.Path)
	if err != nil {
		return p, err
	}
	var here, beside unix.Stat_t
	if err := unix.Stat(target, &here); err != nil {
		return p, &os.PathError{Op: "stat", Path: target, Err: err}
	}
	root := filepath.Dir(target)
	switch err := unix.Stat(root, &beside); {
	case err != nil, here.Dev != beside.Dev, root == target, here.Mode&unix.S_IFMT != unix.S_IFDIR, usesFolder(c, root):
		return p, nil
	}
	p.root.Path, p.generation = root, filepath.Base(target)
	return p, nil
}

// usesFolder reports whether the mount point or a tier is in a directory.
func usesFolder(c *config.Config, dir string) bool {
	// The mount point is without symbolic links. With --fuse-fd it may be mounted already, and this
	// process, which is to serve it, must not call it.
	if c.Mount.Point != "" && paths.Within(c.Mount.Point, dir) {
		return true
	}
	return slices.ContainsFunc(c.Tiers, func(t config.Tier) bool {
		return paths.Within(config.RealPath(t.Path), dir)
	})
}

// openPointer opens the part of a bucket that has the object c. It returns nil if it cannot be opened, or
// has no such object.
func openPointer(ctx context.Context, c config.Source, log *slog.Logger) (*blob.Bucket, pin) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, pin{}
	}
	dir, name := path.Split(strings.Trim(u.Path, "/"))
	u.Path, u.RawPath = "/"+strings.TrimSuffix(dir, "/"), ""
	p := pin{root: c, pointer: name}
	p.root.URL = u.String()
	if name == "" {
		return nil, p
	}
	b, err := openBucket(ctx, p.root.URL, log)
	if err != nil {
		return nil, p
	}
	if info, err := b.Stat(ctx, name); err != nil || !info.IsRegular() {
		b.Close()
		return nil, p
	}
	return b, p
}

// readPointer returns the generation that a pointer names.
func readPointer(ctx context.Context, d drivers.Driver, name string) (string, error) {
	o, err := d.Open(ctx, name)
	if err != nil {
		return "", err
	}
	defer o.Close()
	n := o.Info().Size
	if n > maxPointer {
		return "", fmt.Errorf("%s has %d bytes: it is neither a directory nor a pointer to one", name, n)
	}
	content := make([]byte, n)
	if _, err := o.ReadAt(ctx, content, 0); err != nil && err != io.EOF {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	generation := strings.TrimSuffix(strings.TrimSpace(string(content)), "/")
	if generation == "." || strings.Contains(generation, "/") || !drivers.ValidName(generation) {
		return "", fmt.Errorf("the pointer %s contains %q, which is not the name of a directory beside it", name, content)
	}
	return generation, nil
}

// linked returns the generation that the link of the source names now, or "" if that is unknown.
func (d *daemon) linked(ctx context.Context) string {
	if d.pin.pointer != "" {
		name, err := readPointer(ctx, d.source, d.pin.pointer)
		if err != nil {
			return ""
		}
		return name
	}
	p, err := pinDir(d.cfg)
	if err != nil || p.root.Path != d.pin.root.Path {
		return ""
	}
	return p.generation
}

// shown returns the source that the mount shows first, for a sample of its files.
func (p pin) shown() config.Source {
	s := p.root
	switch u, err := url.Parse(s.URL); {
	case p.generation == "":
	case s.URL == "":
		s.Path = filepath.Join(s.Path, p.generation)
	case err == nil:
		u.Path = path.Join("/", u.Path, p.generation)
		s.URL = u.String()
	}
	return s
}

// sourceError returns the error of a mount for err, of opening what it shows.
func (d *daemon) sourceError(err error) error {
	if d.pin.generation == "" || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return check.SourceError(d.cfg.Source, err)
	}
	return &exit.Error{
		Code:   exit.Source,
		Err:    fmt.Errorf("source: %s has no directory %s", text(d.pin.root.Given()), text(d.pin.generation)),
		Remedy: "A generation is a directory beside the target of the source, if that is a link, or in the source.",
	}
}
