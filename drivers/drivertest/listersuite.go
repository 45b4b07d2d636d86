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
	{"List returns the names of ReadDir and stops at an error", suite.listsInPages, isA[drivers.Lister]},
	{"a missing directory cannot be listed", suite.listsMissing, isA[drivers.Lister]},
	{"OpenVersion opens the listed version", suite.opensListed, isA[drivers.Lister]},
	{"a read of a listed file that has changed is ErrChanged", suite.listedAndChanged, isA[drivers.Lister]},
}

var streamerTests = []namedTest{
	{"a stream returns the requested bytes", suite.streams, suite.isStreamer},
	{"a stream may be closed early", suite.streamClosedEarly, suite.isStreamer},
	{"a stream ends when the context is done", suite.streamCancelled, suite.isStreamer},
	{"a stream returns only the version that was opened", suite.streamChanged, suite.isStreamer},
}

// isStreamer reports whether Objects are Streamers and the driver has a stride. It puts a
// file.
func (s suite) isStreamer() bool {
	_, ok := objectAs[drivers.Streamer](s)
	return ok && s.stride() > 0
}

func (s suite) stride() int64 { return drivers.ProfileOf(s.Driver).Stride }

// list returns the Infos of all pages of dir.
func (s suite) list(dir string) []drivers.Info {
	s.Helper()
	var pages [][]drivers.Info
	err := as[drivers.Lister](s).List(ctx, dir, func(page []drivers.Info) error {
		pages = append(pages, page)
		return nil
	})
	if err != nil {
		s.Fatalf("List(%q): %v", dir, err)
	}
	return slices.Concat(pages...)
}

// listed returns the Info that List returns for the file name in dir.
func (s suite) listed(dir, name string) drivers.Info {
	s.Helper()
	infos := s.list(dir)
	i := slices.IndexFunc(infos, func(i drivers.Info) bool { return i.Name == name })
	if i < 0 {
		s.Fatalf("List(%q) has no %q: %+v", dir, name, infos)
	}
	return infos[i]
}

// streamer returns o as a Streamer, which it must be.
func streamer(s suite, o drivers.Object) drivers.Streamer {
	s.Helper()
	t, ok := drivers.As[drivers.Streamer](o)
	if !ok {
		s.Fatalf("%T is not a Streamer", o)
	}
	return t
}

// openVersion opens the version of a file that info describes, and closes it at the end of the
// test.
func (s suite) openVersion(name string, info drivers.Info) drivers.Object {
	s.Helper()
	o, err := as[drivers.VersionOpener](s).OpenVersion(ctx, name, info)
	if err != nil {
		s.Fatalf("OpenVersion(%q): %v", name, err)
	}
	s.closeAtEnd(name, o)
	return o
}

func (s suite) listsInPages() {
	if got := s.list("."); len(got) != 0 {
		s.Errorf("List of an empty root returns %+v", got)
	}
	files := make(map[string][]byte)
	for i := range 1200 { // more than one page of most drivers
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
		s.Errorf("List returns %d names and ReadDir %d, or they differ; want 1210", len(got), len(want))
	}
	s.wantStopsAtError("dir")
}

// wantStopsAtError checks that List of dir, which has several pages, stops at the error of the
// first one.
func (s suite) wantStopsAtError(dir string) {
	s.Helper()
	stop, pages := errors.New("stop"), 0
	err := as[drivers.Lister](s).List(ctx, dir, func([]drivers.Info) error {
		pages++
		return stop
	})
	s.wantError("List", err, stop)
	if pages != 1 {
		s.Errorf("List passed %d pages, want 1, because the first one failed", pages)
	}
}

func (s suite) listsMissing() {
	s.Put("dir/file", content(10, 1))
	l := as[drivers.Lister](s)
	page := func(infos []drivers.Info) error {
		if len(infos) > 0 {
			s.Errorf("List passed %+v, want nothing", infos)
		}
		return nil
	}
	s.wantError("List of missing", l.List(ctx, "missing", page), fs.ErrNotExist)
	s.wantError("List of missing/dir", l.List(ctx, "missing/dir", page), fs.ErrNotExist)
	for _, name := range []string{"dir/file", "", "/", "dir/", "../dir"} {
		if err := l.List(ctx, name, page); err == nil {
			s.Errorf("List(%q) succeeds, want an error", name)
		}
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	s.wantError("List with a done context", l.List(done, "dir", page), context.Canceled)
}

func (s suite) opensListed() {
	want := content(100_000, 1)
	s.Put("dir/file", want)
	s.Put("dir/empty", nil)
	info := s.listed("dir", "file")
	o := s.openVersion("dir/file", info)
	s.wantContent(o, want)
	if got := o.Info(); got != info {
		s.Errorf("Info returns %+v, List returned %+v", got, info)
	}
	if got := s.open("dir/file").Info(); !got.SameVersion(info) {
		s.Errorf("Open: Info returns %+v, List returned %+v", got, info)
	}
	s.wantContent(s.openVersion("dir/empty", s.listed("dir", "empty")), nil)
}

func (s suite) listedAndChanged() {
	for _, size := range []int{1000, 10, 2000} { // of the replacement
		s.Put("dir/file", content(1000, 1))
		old := s.listed("dir", "file")
		o := s.openVersion("dir/file", old)
		s.Put("dir/file", content(size, 2))
		s.wantChanged(o)
		s.wantChanged(s.openVersion("dir/file", old))
		s.wantChanged(o)

		info := s.listed("dir", "file")
		if info.SameVersion(old) || info.Size == old.Size && info.Mtime.Equal(old.Mtime) {
			s.Errorf("after a change to %d bytes List returns %+v, before it %+v", size, info, old)
		}
		o = s.openVersion("dir/file", info)
		s.wantContent(o, content(size, 2))
		s.Remove("dir/file")
		s.wantChanged(o)
		s.wantChanged(s.openVersion("dir/file", info))
	}
}

// wantChanged checks that reads of o fail with ErrChanged.
func (s suite) wantChanged(o drivers.Object) {
	s.Helper()
	for _, off := range []int64{0, 5, o.Info().Size - 1} {
		n, err := o.ReadAt(ctx, make([]byte, 100), off)
		if n != 0 || !errors.Is(err, drivers.ErrChanged) {
			s.Errorf("ReadAt at %d of a changed file: %d, %v; want ErrChanged", off, n, err)
		}
	}
}

// stream requests n bytes of o at off.
func (s suite) stream(ctx context.Context, o drivers.Object, off, n int64) io.ReadCloser {
	s.Helper()
	r, err := streamer(s, o).Stream(ctx, off, n)
	if err != nil {
		s.Fatalf("Stream of %d bytes at %d: %v", n, off, err)
	}
	return r
}

// putLarge puts "file", which is larger than two strides, and returns its content.
func (s suite) putLarge(seed byte) []byte {
	data := content(int(min(2*s.stride()+12_345, 20<<20)), seed)
	s.Put("file", data)
	return data
}

func (s suite) streams() {
	data := s.putLarge(1)
	o, size := s.open("file"), int64(len(data))
	stride := min(s.stride(), size/2)
	var wg sync.WaitGroup
	for _, test := range []struct{ off, n int64 }{
		{0, size}, {0, 1}, {size - 1, 1}, {0, stride}, {stride - 1, 2}, {stride, stride}, {12_345, size / 2}, {1, size - 1},
	} {
		r := s.stream(ctx, o, test.off, test.n)
		wg.Go(func() {
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, data[test.off:test.off+test.n]) {
				s.Errorf("Stream of %d bytes at %d: %d bytes, %v, or wrong bytes", test.n, test.off, len(got), err)
			}
			if err := r.Close(); err != nil {
				s.Errorf("Close: %v", err)
			}
		})
	}
	wg.Wait()
}

func (s suite) streamClosedEarly() {
	data := s.putLarge(1)
	o := s.open("file")
	for i := range 8 {
		r := s.stream(ctx, o, int64(i), int64(len(data)-i))
		p := make([]byte, i) // at first, no bytes
		if _, err := io.ReadFull(r, p); err != nil || !bytes.Equal(p, data[i:i+i]) {
			s.Errorf("first bytes of a Stream: %v, or wrong bytes", err)
		}
		if err := r.Close(); err != nil {
			s.Errorf("Close: %v", err)
		}
	}
	s.wantContent(o, data)
}

func (s suite) streamCancelled() {
	s.Put("file", content(16<<20, 1)) // more than the driver requests in advance
	o := s.open("file")
	done, cancel := context.WithCancel(ctx)
	r := s.stream(done, o, 0, 16<<20)
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 4096)); err != nil {
		s.Fatal(err)
	}
	cancel()
	_, err := io.Copy(io.Discard, r)
	s.wantError("Read of the stream", err, context.Canceled)
	_, err = s.readStream(done, o, 16<<20)
	s.wantError("Stream with a done context", err, context.Canceled)
}

// readStream reads the first n bytes of o by Stream.
func (s suite) readStream(ctx context.Context, o drivers.Object, n int64) ([]byte, error) {
	r, err := streamer(s, o).Stream(ctx, 0, n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (s suite) streamChanged() {
	data := s.putLarge(1)
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
		s.Errorf("rest of the stream after a change: %d bytes, %v, or wrong bytes", len(rest), err)
	}
	got, err := s.readStream(ctx, o, int64(len(data)))
	if err != nil && !errors.Is(err, drivers.ErrChanged) || !bytes.HasPrefix(data, got) {
		s.Errorf("Stream after a change: %d bytes, %v, or wrong bytes", len(got), err)
	}
	s.Remove("file")
	if got, err := s.readStream(ctx, o, int64(len(data))); err == nil && !bytes.Equal(got, data) {
		s.Errorf("Stream after the removal: %d bytes, or wrong bytes", len(got))
	} else if err != nil && !errors.Is(err, drivers.ErrChanged) {
		s.Errorf("Stream after the removal: %v, want ErrChanged", err)
	}
}
