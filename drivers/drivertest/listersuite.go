package drivertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"github.com/milkweedfs/milkweed/drivers"
)

var listerTests = []namedTest{
	{"List gives in parts what ReadDir gives, and ends with the error of one", suite.listsInParts, suite.isLister},
	{"what is missing cannot be listed", suite.listsMissing, suite.isLister},
	{"a listed file is opened as it was listed", suite.opensListed, suite.isLister},
	{"a listed file that was changed since is ErrChanged", suite.listedAndChanged, suite.isLister},
}

var streamerTests = []namedTest{
	{"a stream has the bytes that were asked for", suite.streams, suite.isStreamer},
	{"a stream may be closed early", suite.streamClosedEarly, suite.isStreamer},
	{"a stream ends when the context is done", suite.streamCancelled, suite.isStreamer},
	{"a stream is of the version that was opened", suite.streamChanged, suite.isStreamer},
}

// isLister reports whether the driver is a drivers.Lister.
func (s suite) isLister() bool {
	_, ok := drivers.As[drivers.Lister](s.Driver)
	return ok
}

// isStreamer reports whether the files of the driver are streamed. It makes one.
func (s suite) isStreamer() bool {
	s.Put("streamer", content(10, 1))
	_, ok := drivers.As[drivers.Streamer](s.open("streamer"))
	return ok && s.stride() > 0
}

func (s suite) stride() int64 { return drivers.ProfileOf(s.Driver).Stride }

// list returns what List gives of dir.
func (s suite) list(dir string) []drivers.Info {
	s.Helper()
	var parts [][]drivers.Info
	err := as[drivers.Lister](s).List(ctx, dir, func(part []drivers.Info) error {
		parts = append(parts, part)
		return nil
	})
	if err != nil {
		s.Fatalf("List(%q): %v", dir, err)
	}
	return slices.Concat(parts...)
}

// listed returns what List says about a file of dir.
func (s suite) listed(dir, name string) drivers.Info {
	s.Helper()
	infos := s.list(dir)
	i := slices.IndexFunc(infos, func(i drivers.Info) bool { return i.Name == name })
	if i < 0 {
		s.Fatalf("List(%q) has no %q: %+v", dir, name, infos)
	}
	return infos[i]
}

// as returns a capability that the driver must have.
func as[T any](s suite) T {
	s.Helper()
	t, ok := drivers.As[T](s.Driver)
	if !ok {
		s.Fatalf("%T is no %T", s.Driver, t)
	}
	return t
}

// streamer returns an Object that must be a drivers.Streamer as one.
func streamer(s suite, o drivers.Object) drivers.Streamer {
	s.Helper()
	t, ok := drivers.As[drivers.Streamer](o)
	if !ok {
		s.Fatalf("%T is no Streamer", o)
	}
	return t
}

// openVersion opens the version of a file that a listing has described.
func (s suite) openVersion(name string, info drivers.Info) drivers.Object {
	s.Helper()
	o, err := as[drivers.VersionOpener](s).OpenVersion(ctx, name, info)
	if err != nil {
		s.Fatalf("OpenVersion(%q): %v", name, err)
	}
	s.Cleanup(func() {
		if err := o.Close(); err != nil {
			s.Errorf("Close of %q: %v", name, err)
		}
	})
	return o
}

func (s suite) listsInParts() {
	if got := s.list("."); len(got) != 0 {
		s.Errorf("the root of nothing has %+v", got)
	}
	files := make(map[string][]byte)
	for i := range 1200 { // more than a part of most
		files[fmt.Sprintf("dir/file-%04d", i)] = content(i%7, 1)
	}
	for i := range 10 {
		files[fmt.Sprintf("dir/dir-%d/file", i)] = content(i, 1)
	}
	s.putMany(files)
	got := s.list("dir")
	want, err := s.Driver.ReadDir(ctx, "dir")
	if err != nil {
		s.Fatal(err)
	}
	byName := func(a, b drivers.Info) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(got, byName)
	slices.SortFunc(want, byName)
	if len(got) != 1210 || !slices.Equal(got, want) {
		s.Errorf("List gives %d names and ReadDir %d, or they differ; want 1210", len(got), len(want))
	}
	s.wantEndsWithPart("dir")
}

// wantEndsWithPart lists dir, which has more than one part, up to an error.
func (s suite) wantEndsWithPart(dir string) {
	s.Helper()
	stop, parts := errors.New("no more"), 0
	err := as[drivers.Lister](s).List(ctx, dir, func([]drivers.Info) error {
		parts++
		return stop
	})
	s.wantIs("List", err, stop)
	if parts != 1 {
		s.Errorf("%d parts, though the first one failed", parts)
	}
}

func (s suite) listsMissing() {
	s.Put("dir/file", content(10, 1))
	l := as[drivers.Lister](s)
	part := func(infos []drivers.Info) error {
		if len(infos) > 0 {
			s.Errorf("given %+v", infos)
		}
		return nil
	}
	s.wantIs("List of missing", l.List(ctx, "missing", part), fs.ErrNotExist)
	s.wantIs("List of missing/dir", l.List(ctx, "missing/dir", part), fs.ErrNotExist)
	for _, name := range []string{"dir/file", "", "/", "dir/", "../dir"} {
		if err := l.List(ctx, name, part); err == nil {
			s.Errorf("List(%q) succeeds", name)
		}
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	s.wantIs("List", l.List(done, "dir", part), context.Canceled)
}

func (s suite) opensListed() {
	want := content(100_000, 1)
	s.Put("dir/file", want)
	s.Put("dir/empty", nil)
	info := s.listed("dir", "file")
	o := s.openVersion("dir/file", info)
	s.wantContent(o, want)
	if got := o.Info(); got != info {
		s.Errorf("Info is %+v, and was listed as %+v", got, info)
	}
	if got := s.open("dir/file").Info(); !got.SameVersion(info) {
		s.Errorf("opened %+v, and listed %+v", got, info)
	}
	s.wantContent(s.openVersion("dir/empty", s.listed("dir", "empty")), nil)
}

func (s suite) listedAndChanged() {
	for _, size := range []int{1000, 10, 2000} { // what takes its place at once
		s.Put("dir/file", content(1000, 1))
		old := s.listed("dir", "file")
		o := s.openVersion("dir/file", old)
		s.Put("dir/file", content(size, 2))
		s.wantChanged(o)
		s.wantChanged(s.openVersion("dir/file", old))
		s.wantChanged(o)

		info := s.listed("dir", "file")
		if info.SameVersion(old) || info.Size == old.Size && info.Mtime.Equal(old.Mtime) {
			s.Errorf("after a change to %d bytes it is listed as %+v, and was as %+v", size, info, old)
		}
		o = s.openVersion("dir/file", info)
		s.wantContent(o, content(size, 2))
		s.Remove("dir/file")
		s.wantChanged(o)
		s.wantChanged(s.openVersion("dir/file", info))
	}
}

// wantChanged reads what is gone.
func (s suite) wantChanged(o drivers.Object) {
	s.Helper()
	for _, off := range []int64{0, 5, o.Info().Size - 1} {
		n, err := o.ReadAt(ctx, make([]byte, 100), off)
		if n != 0 || !errors.Is(err, drivers.ErrChanged) {
			s.Errorf("ReadAt at %d of what has changed: %d, %v", off, n, err)
		}
	}
}

// stream asks for a part of o.
func (s suite) stream(ctx context.Context, o drivers.Object, off, n int64) io.ReadCloser {
	s.Helper()
	r, err := streamer(s, o).Stream(ctx, off, n)
	if err != nil {
		s.Fatalf("Stream of %d at %d: %v", n, off, err)
	}
	return r
}

// streamed puts a file that takes a few requests to be read.
func (s suite) streamed(seed byte) []byte {
	data := content(int(min(2*s.stride()+12_345, 20<<20)), seed)
	s.Put("file", data)
	return data
}

func (s suite) streams() {
	data := s.streamed(1)
	o, size := s.open("file"), int64(len(data))
	stride := min(s.stride(), size/2)
	var wg sync.WaitGroup
	for _, part := range []struct{ off, n int64 }{
		{0, size}, {0, 1}, {size - 1, 1}, {0, stride}, {stride - 1, 2}, {stride, stride}, {12_345, size / 2}, {1, size - 1},
	} {
		r := s.stream(ctx, o, part.off, part.n)
		wg.Go(func() { // side by side
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, data[part.off:part.off+part.n]) {
				s.Errorf("Stream of %d at %d: %d bytes, or other ones, %v", part.n, part.off, len(got), err)
			}
			if err := r.Close(); err != nil {
				s.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
}

func (s suite) streamClosedEarly() {
	data := s.streamed(1)
	o := s.open("file")
	for i := range 8 {
		r := s.stream(ctx, o, int64(i), int64(len(data)-i))
		p := make([]byte, i) // none of it, the first time
		if _, err := io.ReadFull(r, p); err != nil || !bytes.Equal(p, data[i:i+i]) {
			s.Errorf("the start of a Stream: %v, or other bytes", err)
		}
		if err := r.Close(); err != nil {
			s.Errorf("Close: %v", err)
		}
	}
	s.wantContent(o, data)
}

func (s suite) streamCancelled() {
	s.Put("file", content(16<<20, 1)) // more than is on its way
	o := s.open("file")
	done, cancel := context.WithCancel(ctx)
	r := s.stream(done, o, 0, 16<<20)
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 4096)); err != nil {
		s.Fatal(err)
	}
	cancel()
	_, err := io.Copy(io.Discard, r)
	s.wantIs("reading on", err, context.Canceled)
	_, err = s.readStream(done, o, 16<<20)
	s.wantIs("another Stream", err, context.Canceled)
}

// readStream reads the first n bytes of o by a Stream.
func (s suite) readStream(ctx context.Context, o drivers.Object, n int64) ([]byte, error) {
	r, err := streamer(s, o).Stream(ctx, 0, n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (s suite) streamChanged() {
	data := s.streamed(1)
	o := s.open("file")
	r := s.stream(ctx, o, 0, int64(len(data)))
	defer r.Close()
	first := make([]byte, 10)
	if _, err := io.ReadFull(r, first); err != nil {
		s.Fatal(err)
	}
	s.Put("file", content(len(data), 2))
	rest, err := io.ReadAll(r)
	if err != nil && !errors.Is(err, drivers.ErrChanged) || !bytes.HasPrefix(data, append(first, rest...)) {
		s.Errorf("the rest: %d bytes, or other ones, %v", len(rest), err)
	}
	got, err := s.readStream(ctx, o, int64(len(data)))
	if err != nil && !errors.Is(err, drivers.ErrChanged) || !bytes.HasPrefix(data, got) {
		s.Errorf("a Stream after the change: %d bytes, or other ones, %v", len(got), err)
	}
	s.Remove("file")
	if got, err := s.readStream(ctx, o, int64(len(data))); err == nil && !bytes.Equal(got, data) {
		s.Errorf("a Stream after the removal: %d other bytes", len(got))
	} else if err != nil && !errors.Is(err, drivers.ErrChanged) {
		s.Errorf("a Stream after the removal: %v", err)
	}
}
