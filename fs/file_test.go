package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
)

// A scripted content fails with one error after another, and then reads "content". It writes
// to the buffers of abandoned reads after each later read, as a hung device may.
type scripted struct {
	errs      []error
	reads     int
	abandoned [][]byte
}

func (s *scripted) ReadAt(_ context.Context, p []byte, _ int64) (int, error) {
	defer func() {
		for _, b := range s.abandoned {
			for i := range b {
				b[i] = '!'
			}
		}
	}()
	s.reads++
	if s.reads > len(s.errs) {
		return copy(p, "content"), io.EOF
	}
	err := s.errs[s.reads-1]
	if errors.Is(err, drivers.ErrAbandoned) {
		s.abandoned = append(s.abandoned, p)
	}
	return 0, err
}

// A read is repeated while its error matches drivers.ErrRetry, and never into a buffer that an
// earlier one has abandoned. Other errors are not retried.
func TestReadRetries(t *testing.T) {
	retry := fmt.Errorf("tier 1: %w: %w", drivers.ErrRetry, syscall.EIO)
	abandoned := fmt.Errorf("tier 2: %w: %w", drivers.ErrRetry, drivers.ErrAbandoned)
	broken := fmt.Errorf("source: %w", syscall.EREMOTEIO)
	for name, c := range map[string]struct {
		errs  []error
		want  error
		reads int
	}{
		"first read succeeds":   {reads: 1},
		"retry":                 {errs: []error{retry}, reads: 2},
		"abandoned":             {errs: []error{abandoned}, reads: 2},
		"several":               {errs: []error{retry, abandoned, abandoned, retry, retry}, reads: 6},
		"error of the source":   {errs: []error{broken}, want: syscall.EREMOTEIO, reads: 1},
		"and after some places": {errs: []error{abandoned, retry, broken}, want: syscall.EREMOTEIO, reads: 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := new(fileSystem).newRequest(nil)
			defer r.end()
			s := &scripted{errs: c.errs}
			result, err := new(fileSystem).read(r, s, 4096, 0)
			if !errors.Is(err, c.want) {
				t.Errorf("got error %v, want %v", err, c.want)
			}
			if s.reads != c.reads {
				t.Errorf("got %d reads, want %d", s.reads, c.reads)
			}
			if err != nil {
				return
			}
			if got, _ := result.Bytes(make([]byte, 4096)); string(got) != "content" {
				t.Errorf("got %q, want %q", got, "content")
			}
		})
	}
}

// The retries of an interrupted request end, also if the places never do.
func TestReadRetriesEndWhenInterrupted(t *testing.T) {
	r := new(fileSystem).newRequest(nil)
	r.done, r.answered = make(chan struct{}), make(chan struct{})
	defer r.end()
	close(r.done)
	s := &scripted{errs: []error{drivers.ErrRetry, drivers.ErrRetry}}
	if _, err := new(fileSystem).read(r, s, 4096, 0); !errors.Is(err, context.Canceled) || s.reads != 1 {
		t.Errorf("got %v after %d reads, want %v after 1", err, s.reads, context.Canceled)
	}
}
