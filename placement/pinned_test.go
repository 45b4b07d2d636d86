package placement

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/manifest"
	"github.com/milkweedfs/milkweed/tiers"
)

// newPinnedRig returns a rig whose source has a manifest, with the content that a file has, and the one that
// the manifest says.
func newPinnedRig(t *testing.T, size int, quota int64) (r *rig, has, says []byte) {
	mem := drivertest.NewMem(0)
	has = bytes.Repeat([]byte{1, 2, 3, 4, 5}, size/5+1)[:size]
	says = bytes.Clone(has)
	says[size-1]++
	mem.Put("right", says)
	mem.Put("wrong", has)
	var b bytes.Buffer
	w := manifest.NewWriter(&b)
	for _, name := range []string{"right", "wrong"} {
		e := manifest.Entry{Name: name, Mode: syscall.S_IFREG | 0o644, Size: int64(size), SHA256: sha256.Sum256(says)}
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Load(&b)
	if err != nil {
		t.Fatal(err)
	}
	r = newRig(t, rigOptions{quotas: []int64{quota}, over: manifest.New(mem, m)})
	r.mem = mem
	return r, has, says
}

// A copy is committed if it has the content in the manifest, in whatever order its blocks arrive. Otherwise
// it is not, and the file cannot be opened. Of a file of one block, no reader gets a wrong byte.
func TestPinnedContent(t *testing.T) {
	for name, size := range map[string]int{"one block": 1000, "blocks": 5*blockSize + 77} {
		for _, last := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r, _, says := newPinnedRig(t, size, 100<<20)
				for _, file := range []string{"right", "wrong"} {
					obj := r.open(file)
					p := make([]byte, 100)
					if last { // the blocks arrive out of order
						if _, err := obj.ReadAt(t.Context(), p, int64(size-100)); err != nil && file == "right" {
							t.Fatal(err)
						}
					}
					obj.Close()
					got, err := r.read(file)
					r.settled()
					e := r.entry(file)
					if file == "right" {
						if err != nil || !bytes.Equal(got, says) || e.Level() != 1 {
							t.Errorf("%s: read %d bytes, %v; level %d", file, len(got), err, e.Level())
						}
						continue
					}
					if err == nil && size <= blockSize {
						t.Errorf("%s: the wrong bytes were read", file)
					}
					if e.Level() != tiers.AtSource {
						t.Errorf("%s: has a copy", file)
					}
					if _, err := r.read(file); !errors.Is(err, syscall.EIO) {
						t.Errorf("%s: the second read: %v, want EIO", file, err)
					}
				}
				if s := r.handler.Stats(); s.Placed != 1 || s.Mismatched != 1 {
					t.Errorf("%d placed, %d mismatched; want 1 and 1", s.Placed, s.Mismatched)
				}
				r.mem.Put("wrong", says)
				if _, err := r.read("wrong"); !errors.Is(err, drivers.ErrChanged) { // the kernel looks it up again
					t.Errorf("after the file was repaired: %v, want ErrChanged", err)
				}
				r.wantFile("wrong", says)
			})
		}
	}
}

// Without room for a copy nothing is hashed.
func TestPinnedWithoutRoom(t *testing.T) {
	r, has, _ := newPinnedRig(t, 100_000, 1000)
	r.wantFile("wrong", has)
	if s := r.handler.Stats(); s.Mismatched != 0 {
		t.Errorf("%d mismatched", s.Mismatched)
	}
}

// A file that the source does not have, or has with another size, is counted and logged once, however often it is
// opened, and of many such files the first are logged.
func TestPinnedMissing(t *testing.T) {
	mem := drivertest.NewMem(0)
	mem.Put("shorter", []byte("123"))
	const missing = loggedMismatches + 10
	var b, log bytes.Buffer
	w := manifest.NewWriter(&b)
	names := []string{"shorter"}
	for i := range missing {
		names = append(names, fmt.Sprintf("missing%d", i))
	}
	for _, name := range names {
		if err := w.Write(manifest.Entry{Name: name, Mode: syscall.S_IFREG | 0o644, Size: 4}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Load(&b)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, rigOptions{quotas: []int64{1 << 20}, over: manifest.New(mem, m), log: &log})
	for range 3 {
		for _, name := range names {
			if _, err := r.read(name); !errors.Is(err, drivers.ErrMismatch) || !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	r.settled()
	if s := r.handler.Stats(); s.Mismatched != missing+1 {
		t.Errorf("%d mismatched, want %d", s.Mismatched, missing+1)
	}
	text := log.String()
	if n := strings.Count(text, "file not as in the manifest"); n != loggedMismatches {
		t.Errorf("%d files are logged, want %d", n, loggedMismatches)
	}
	if n := strings.Count(text, "path=shorter"); n != 1 {
		t.Errorf("%d lines name one file:\n%.1000s", n, text)
	}
	if n := strings.Count(text, "\n"); n != loggedMismatches+1 {
		t.Errorf("the log has %d lines", n)
	}
}
