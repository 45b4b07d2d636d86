package blob

import (
	"errors"
	"net/http"
	"syscall"
	"testing"
)

// A status that says that the store cannot do what was requested is not retried,
// although it is a 5xx.
func TestStatusNotRetried(t *testing.T) {
	for _, status := range []int{http.StatusNotImplemented, http.StatusHTTPVersionNotSupported} {
		s := newStore(t, 1000)
		o := s.open(t, "").object(t)
		s.answer(func(w http.ResponseWriter, r *http.Request) { fail(w, status, "NotImplemented", "x") })
		s.gets.Store(0)
		if _, err := readAll(o); !errors.Is(err, syscall.EIO) {
			t.Errorf("%d: got %v, want EIO", status, err)
		}
		if got := s.gets.Load(); got != 1 {
			t.Errorf("%d: got %d requests, want 1", status, got)
		}
	}
}
