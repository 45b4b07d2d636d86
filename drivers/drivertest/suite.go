// Package drivertest tests the contract of package drivers. It also provides storage for the
// tests of other packages: Mem holds files in memory, Bucket simulates an object store, and
// Faults wraps a driver, injects errors, delays and hangs, and counts operations.
package drivertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Run tests that the driver of the Subject that open returns keeps the contract of
// drivers.Driver, and that of each optional interface of the driver and its Objects. It
// calls open once for each test, and once before.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	subject := open(t)
	for _, test := range allTests {
		if test.applies != nil && !test.applies(suite{T: t, Subject: subject}) {
			continue
		}
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			test.run(suite{T: t, Subject: open(t)})
		})
	}
}

// A namedTest tests one rule of the contract, which its name states.
type namedTest struct {
	name    string
	run     func(s suite)
	applies func(s suite) bool // whether the subject has the capability to test; nil: always
}

var allTests = slices.Concat(driverTests, optionalTests, listerTests, streamerTests, storeTests)

// A suite is one test of one subject.
type suite struct {
	*testing.T
	Subject
}

// isA reports whether the driver has the capability T.
func isA[T any](s suite) bool {
	_, ok := drivers.As[T](s.Driver)
	return ok
}

// as returns the capability T of the driver, which must have it.
func as[T any](s suite) T {
	s.Helper()
	t, ok := drivers.As[T](s.Driver)
	if !ok {
		s.Fatalf("%T is not a %v", s.Driver, reflect.TypeFor[T]())
	}
	return t
}

// objectAs puts and opens a file and returns the capability T of its Object.
func objectAs[T any](s suite) (T, bool) {
	s.Helper()
	s.Put("capability", content(10, 1))
	return drivers.As[T](s.open("capability"))
}

var ctx = context.Background()

// content returns n bytes that depend on seed.
func content(n int, seed byte) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i>>8)*31 + byte(i) + seed
	}
	return data
}

// putMany creates files, by PutMany if the subject has it.
func (s suite) putMany(files map[string][]byte) {
	s.Helper()
	if s.PutMany != nil {
		s.PutMany(files)
		return
	}
	for name, data := range files {
		s.Put(name, data)
	}
}

// canHave reports whether the storage can have a file of that name.
func (s suite) canHave(name string) bool { return s.Names == nil || s.Names(name) }

// open opens a file and closes it at the end of the test.
func (s suite) open(name string) drivers.Object {
	s.Helper()
	o, err := s.Driver.Open(ctx, name)
	if err != nil {
		s.Fatalf("Open(%q): %v", name, err)
	}
	s.closeAtEnd(name, o)
	return o
}

// closeAtEnd closes c, which belongs to the file name, at the end of the test.
func (s suite) closeAtEnd(name string, c io.Closer) {
	s.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.Errorf("Close of %T of %q: %v", c, name, err)
		}
	})
}

func (s suite) stat(name string) drivers.Info {
	s.Helper()
	info, err := s.Driver.Stat(ctx, name)
	if err != nil {
		s.Fatalf("Stat(%q): %v", name, err)
	}
	return info
}

// names returns the sorted names in dir.
func (s suite) names(dir string) []string {
	s.Helper()
	infos, err := s.Driver.ReadDir(ctx, dir)
	if err != nil {
		s.Fatalf("ReadDir(%q): %v", dir, err)
	}
	var names []string
	for _, info := range infos {
		names = append(names, info.Name)
	}
	slices.Sort(names)
	return names
}

// wantContent checks that o has the content want. Its last read reaches past the end.
func (s suite) wantContent(o drivers.Object, want []byte) {
	s.Helper()
	got, err := io.ReadAll(reader(o))
	if err != nil {
		s.Errorf("read: %v", err)
	} else if !bytes.Equal(got, want) {
		s.Errorf("read %d bytes, or wrong bytes; want %d", len(got), len(want))
	}
}

// reader returns a Reader of o from its start to one byte past its end.
func reader(o drivers.Object) io.Reader {
	return io.NewSectionReader(readerAt{o}, 0, o.Info().Size+1)
}

type readerAt struct{ drivers.Object }

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r.Object.ReadAt(ctx, p, off) }

// wantFile checks that the file name has the content want.
func (s suite) wantFile(name string, want []byte) {
	s.Helper()
	s.wantContent(s.open(name), want)
}

// wantOpenedVersion checks that o has the content want, or that reads fail with ErrChanged.
func (s suite) wantOpenedVersion(o drivers.Object, want []byte) {
	s.Helper()
	got, err := io.ReadAll(reader(o))
	if err != nil && !errors.Is(err, drivers.ErrChanged) || err == nil && !bytes.Equal(got, want) {
		s.Errorf("read: %v, or bytes of another version", err)
	}
}

// wantError checks that err, which call returned, matches want.
func (s suite) wantError(call string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: got error %v, want one that matches %v", call, err, want)
	}
}

// wantOpenFails checks that Open of name returns an error and does not block.
func (s suite) wantOpenFails(name string) {
	s.Helper()
	done := make(chan error, 1)
	go func() {
		o, err := s.Driver.Open(ctx, name)
		if err == nil {
			o.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			s.Errorf("Open(%q) succeeds, want an error", name)
		}
	case <-time.After(10 * time.Second):
		s.Fatalf("Open(%q) hangs", name)
	}
}
