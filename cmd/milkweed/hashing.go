package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/manifest"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// hashesAtOnce is the number of files that are hashed at the same time. A bucket needs several requests in
// flight, and a local source as many as there are CPUs.
const hashesAtOnce = 16

// A hasher lists a source, and computes the SHA-256 of its files.
type hasher struct {
	driver  drivers.Driver
	wants   func(manifest.Entry) bool // whether a regular file is read; the Entry has no SHA-256
	onFound func(manifest.Entry, error) error

	read atomic.Int64 // bytes
}

// A hashing is one name, whose SHA-256 is computed on another goroutine.
type hashing struct {
	entry manifest.Entry
	err   error
	ended chan struct{}
}

// run calls onFound for each name: a directory, then what is in it, sorted. The error that it passes is that
// of listing a directory, or of reading a file. It stops when onFound returns an error.
func (h *hasher) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	inOrder := make(chan *hashing, 16*hashesAtOnce)
	todo := make(chan *hashing)
	g.Go(func() (err error) {
		defer panics.Catch(&err)
		defer close(inOrder)
		defer close(todo)
		root, err := h.driver.Stat(ctx, ".")
		if err != nil {
			return err
		}
		return h.walk(ctx, entryOf(".", root), inOrder, todo)
	})
	for range hashesAtOnce {
		g.Go(func() (err error) {
			defer panics.Catch(&err)
			for f := range todo {
				f.entry.SHA256, f.err = h.hash(ctx, f.entry)
				close(f.ended)
			}
			return nil
		})
	}
	g.Go(func() (err error) {
		defer panics.Catch(&err)
		for f := range inOrder {
			if f.ended != nil {
				select {
				case <-f.ended:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := h.onFound(f.entry, f.err); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// walk sends a directory, and what is in it.
func (h *hasher) walk(ctx context.Context, dir manifest.Entry, inOrder, todo chan<- *hashing) error {
	send := func(to chan<- *hashing, f *hashing) error {
		select {
		case to <- f:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	infos, err := h.driver.ReadDir(ctx, dir.Name)
	if err := send(inOrder, &hashing{entry: dir, err: err}); err != nil {
		return err
	}
	slices.SortFunc(infos, func(a, b drivers.Info) int { return cmp.Compare(a.Name, b.Name) })
	var below []manifest.Entry
	for _, info := range infos {
		name := info.Name
		if dir.Name != "." {
			name = dir.Name + "/" + name
		}
		e := entryOf(name, info)
		if e.IsDir() && info.Err == nil {
			below = append(below, e)
			continue
		}
		f := &hashing{entry: e, err: info.Err}
		if f.err == nil && e.IsSymlink() {
			f.entry.Target, f.err = h.readlink(ctx, name)
		}
		hashes := f.err == nil && e.IsRegular() && h.wants(e)
		if hashes {
			f.ended = make(chan struct{})
		}
		if err := send(inOrder, f); err != nil {
			return err
		}
		if hashes {
			if err := send(todo, f); err != nil {
				return err
			}
		}
	}
	for _, e := range below {
		if err := h.walk(ctx, e, inOrder, todo); err != nil {
			return err
		}
	}
	return nil
}

func entryOf(name string, info drivers.Info) manifest.Entry {
	e := manifest.Entry{Name: name, Mode: info.Mode, Mtime: info.Mtime}
	if info.IsRegular() {
		e.Size = info.Size
	}
	return e
}

func (h *hasher) readlink(ctx context.Context, name string) (string, error) {
	l, ok := drivers.As[drivers.Readlinker](h.driver)
	if !ok {
		return "", errors.ErrUnsupported
	}
	return l.Readlink(ctx, name)
}

// hash computes the SHA-256 of a file. It is an error if the file changes during that.
func (h *hasher) hash(ctx context.Context, e manifest.Entry) (sum [sha256.Size]byte, err error) {
	o, err := h.driver.Open(ctx, e.Name)
	if err != nil {
		return sum, err
	}
	defer o.Close()
	size := o.Info().Size
	if size != e.Size {
		return sum, fmt.Errorf("%s: %w", e.Name, drivers.ErrChanged)
	}
	if o.Info().Unsized {
		if err := drivers.CheckEmpty(ctx, o); err != nil {
			return sum, fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	hash := sha256.New()
	var content io.Reader = io.NewSectionReader(contentOf{ctx, o}, 0, size)
	if s, ok := drivers.As[drivers.Streamer](o); ok && drivers.ProfileOf(h.driver).Stride > 0 && size > 0 {
		stream, err := s.Stream(ctx, 0, size)
		if err != nil {
			return sum, err
		}
		defer stream.Close()
		content = stream
	}
	buf := make([]byte, min(max(size, 1), 1<<20))
	// Without the methods WriteTo and ReadFrom, CopyBuffer uses the buffer.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(hash, counting{&h.read})}, struct{ io.Reader }{content}, buf)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return sum, err
	}
	if v, ok := drivers.As[drivers.Verifier](o); ok {
		if err := v.Verify(ctx); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return sum, err
		}
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}

// A contentOf makes an Object an io.ReaderAt.
type contentOf struct {
	ctx context.Context
	drivers.Object
}

func (c contentOf) ReadAt(p []byte, off int64) (int, error) { return c.Object.ReadAt(c.ctx, p, off) }

// A counting counts what is written to it.
type counting struct{ n *atomic.Int64 }

func (c counting) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
