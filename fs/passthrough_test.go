package fs_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// registrations wraps an Opener and counts the registrations of backing files.
type registrations struct {
	fs.Opener

	mu       sync.Mutex // guards the following
	made     int
	released int
	twice    int // releases of registrations that were released already
}

func (r *registrations) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	obj, err := r.Opener.Open(ctx, e)
	if err != nil {
		return nil, err
	}
	return &registeredObject{obj, r}, nil
}

func (r *registrations) counts() (made, released, twice int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made, r.released, r.twice
}

type registeredObject struct {
	drivers.Object
	counts *registrations
}

func (o *registeredObject) Inner() drivers.Object { return o.Object }

// BackingFile implements drivers.BackingFiler.
func (o *registeredObject) BackingFile(register func(fd uintptr) error) (func(), error) {
	inner, _ := drivers.As[drivers.BackingFiler](o.Object)
	release, err := inner.BackingFile(register)
	if err != nil {
		return nil, err
	}
	r := o.counts
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made++
	done := false
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if done {
			r.twice++
			return
		}
		done = true
		r.released++
		release()
	}, nil
}

// The registration of a backing file lasts until the last of its opens is closed, or until the
// connection ends, however it ends. It is released once, and then no descriptor of the tier is
// open.
func TestBackingFilesAreReleased(t *testing.T) {
	t.Parallel()
	cases := map[string]func(s *stack, handles []*held){
		"closed": func(s *stack, handles []*held) {
			for _, h := range handles {
				h.close()
			}
			s.closed()
			s.end()
		},
		"detached": func(s *stack, handles []*held) {
			s.check(s.mount.Detach())
			for _, h := range handles {
				h.close()
			}
			s.mount.Wait()
			s.shut()
		},
		"detached and killed": func(s *stack, handles []*held) {
			s.check(s.mount.Detach())
			for _, h := range handles {
				s.check(h.cmd.Process.Kill())
			}
			s.mount.Wait()
			s.shut()
		},
		"aborted": func(s *stack, handles []*held) {
			s.abort()
			s.mount.Wait()
			for _, h := range handles {
				h.close()
			}
			s.end()
		},
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			counts := new(registrations)
			s := newStack(t, stackOptions{
				mode: fs.Passthrough, quotas: []tiers.Quota{bytesQuota(1 << 30)},
				wrap: func(o fs.Opener) fs.Opener { counts.Opener = o; return counts },
			}, func(source string) { write(t, source, "f", 3<<20, 1) })
			s.epoch(1)
			s.settled()
			s.closed()
			var handles []*held
			for range 3 {
				handles = append(handles, hold(t, s.in("f")))
			}
			tier := s.tierPath(1)
			// The first registration is alive; those of the other opens ended at once.
			if made, released, _ := counts.counts(); made != 3 || released != 2 {
				t.Fatalf("with 3 open handles: got %d registrations, %d of them released; want 3, 2", made, released)
			}
			if got := descriptorsOf(tier + "/data/files/"); len(got) == 0 {
				t.Fatal("no descriptor of the copy is open while it is a backing file")
			}
			end(s, handles)
			if made, released, twice := counts.counts(); made != 3 || released != made || twice != 0 {
				t.Errorf("after the end: got %d registrations, %d released, %d twice; want 3, 3, 0", made, released, twice)
			}
			if got := descriptorsOf(tier + "/"); len(got) > 0 {
				t.Errorf("descriptors that are still open: %q", got)
			}
		})
	}
}

// descriptorsOf returns the paths that start with a prefix and of which this process has a
// descriptor open.
func descriptorsOf(prefix string) []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	var open []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && strings.HasPrefix(target, prefix) {
			open = append(open, target)
		}
	}
	return open
}
