package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// serveHandler serves requests as a daemon does, and returns a client.
func serveHandler(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-served })
	c := newClient("/mnt", path)
	t.Cleanup(c.Close)
	return c
}

// A daemon that answers nothing is named as one that hangs, in a short time. One that says that it is alive may take
// longer to answer.
func TestSilentDaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a daemon that hangs")
	}
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		c := serveHandler(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		_, err := c.get(t.Context(), "/v1/status")
		if !errors.As(err, new(*SilentError)) || exit.Of(err) != exit.NotMounted || !strings.Contains(err.Error(), "the daemon of /mnt hangs") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("is slow", func(t *testing.T) {
		t.Parallel()
		asked := make(chan struct{})
		c := serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/ready" {
				http.Error(w, "", http.StatusForbidden) // as to a guest
				close(asked)
				return
			}
			<-asked
			w.Write([]byte("late"))
		})
		if got, err := c.get(t.Context(), "/v1/status"); err != nil || string(got) != "late" {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("is left", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		c := serveHandler(t, func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		})
		if _, err := c.get(ctx, "/v1/status"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
}
