package blob

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// The tests in this file hold statements of docs/SEMANTICS.md.

// A status that says that the store cannot do what was requested is not retried,
// although it is a 5xx.
func TestStatusNotRetried(t *testing.T) {
	for _, status := range []int{http.StatusNotImplemented, http.StatusHTTPVersionNotSupported} {
		s := newStore(t, 1000)
		o := s.open(t, "").object(t)
		s.onGet(func(w http.ResponseWriter, r *http.Request) { fail(w, status, "NotImplemented", "x") })
		s.gets.Store(0)
		if _, err := readAll(o); !errors.Is(err, syscall.EIO) {
			t.Errorf("%d: got %v, want EIO", status, err)
		}
		if got := s.gets.Load(); got != 1 {
			t.Errorf("%d: got %d requests, want 1", status, got)
		}
	}
}

// A status that may be transient is retried, and the reader sees no error.
func TestStatusRetried(t *testing.T) {
	for _, status := range []int{408, 429, 500, 502, 503, 504, 507} {
		s := newStore(t, 1000)
		b := s.open(t, "")
		o := b.object(t)
		var failures atomic.Int64
		s.onGet(func(w http.ResponseWriter, r *http.Request) {
			if failures.Add(1) <= 2 {
				fail(w, status, "Transient", "x")
			}
		})
		if got, err := readAll(o); err != nil || !bytes.Equal(got, s.data) {
			t.Errorf("%d: got %d bytes, %v", status, len(got), err)
		}
		if got := b.Stats().Retries; got != 2 {
			t.Errorf("%d: got %d retries, want 2", status, got)
		}
	}
}

// The first hidden key is logged, and a key that ends in "/" and has content is
// the directory of its name.
func TestHiddenKeyIsLogged(t *testing.T) {
	b := inMemory(t, "", "a")
	var out bytes.Buffer
	b.log = slog.New(slog.NewTextHandler(&out, nil))
	for _, key := range []string{"d/", "e/"} {
		b.vendor.(memory)[key] = 7
	}
	if got, want := tree(t, b, "."), []string{"a", "d/", "e/"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := b.Stats().Hidden; got != 2 {
		t.Errorf("got %d hidden keys, want 2", got)
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "key=d/") {
		t.Errorf("logged %q, want one line with the key d/", got)
	}
}
