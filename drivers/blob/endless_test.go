package blob

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A store that sends a byte now and then stalls, for listings and for content.
func TestTrickle(t *testing.T) {
	s := newStore(t, 100_000)
	b := s.open(t, "")
	o := b.object(t)
	b.stallTimeout = 100 * time.Millisecond
	trickle := func(w http.ResponseWriter, r *http.Request, body string) {
		for i := range body {
			io.WriteString(w, body[i:i+1])
			w.(http.Flusher).Flush()
			select {
			case <-time.After(5 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	}
	s.onGet(func(w http.ResponseWriter, r *http.Request) {
		var from, to int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("ETag", `"first"`)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(s.data)))
		w.WriteHeader(206)
		trickle(w, r, string(s.data[from:to+1]))
	})
	if _, err := readAll(o); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("content: got error %v, want ETIMEDOUT", err)
	}
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trickle(w, r, "<ListBucketResult>"+strings.Repeat(" ", 100_000))
	})
	if _, err := b.ReadDir(t.Context(), "."); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("listing: got error %v, want ETIMEDOUT", err)
	}
}

// A drip is a body that returns n bytes after each interval, until ctx is done.
type drip struct {
	watchdog *watchdog
	n        int
	interval time.Duration
}

func (d drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(d.interval):
		return min(d.n, len(p)), nil
	case <-d.watchdog.ctx.Done():
		return 0, d.watchdog.ctx.Err()
	}
}

func (d drip) Close() error { return nil }

// The stall time-out counts the time that callers wait for minProgress bytes. A slow response
// that makes progress may take any time, and so may a caller.
func TestStallTimeout(t *testing.T) {
	for _, tt := range []struct {
		n        int
		interval time.Duration
		pause    time.Duration // of the caller between two reads
		want     error
	}{
		{1, time.Second, 0, errStalled},
		{30, time.Second, 0, errStalled},
		{40, time.Second, 0, nil},
		{minProgress, 29 * time.Second, 0, nil},
		{minProgress, 31 * time.Second, 0, errStalled},
		{40, time.Second, time.Minute, nil},
		{1, time.Second, time.Minute, errStalled},
	} {
		t.Run(fmt.Sprintf("%d bytes in %v with pauses of %v", tt.n, tt.interval, tt.pause), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, w, cancel := withWatchdog(t.Context(), stallTimeout)
				defer cancel()
				w.disarm(nil)
				b := &body{ReadCloser: drip{w, tt.n, tt.interval}, watchdog: w, cancel: cancel}
				var err error
				for range 100 {
					if _, err = b.Read(make([]byte, 1<<20)); err != nil {
						break
					}
					time.Sleep(tt.pause)
				}
				if !errors.Is(err, tt.want) {
					t.Errorf("got error %v, want %v", err, tt.want)
				}
			})
		})
	}
}
