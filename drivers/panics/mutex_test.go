package panics_test

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// isBroken reports whether panics.Broken is closed.
func isBroken() bool {
	select {
	case <-panics.Broken():
		return true
	default:
		return false
	}
}

// A panic under a lock for writing leaves it locked and closes Broken; one beside the lock, or under
// a lock for reading, does neither. Broken is never open again, so that each case needs a process of
// its own.
func TestBroken(t *testing.T) {
	var (
		mu panics.Mutex
		rw panics.RWMutex
	)
	under := func(lock sync.Locker, f func()) func() {
		return func() {
			lock.Lock()
			defer lock.Unlock()
			f()
		}
	}
	nothing := func() {}
	cases := map[string]struct {
		lock   sync.Locker
		f      func()
		broken bool
	}{
		"guilty":     {&mu, under(&mu, guilty), true},
		"below":      {&mu, under(&mu, func() { defer nothing(); guilty() }), true},
		"writer":     {&rw, under(&rw, guilty), true},
		"reader":     {&rw, under(rw.RLocker(), guilty), false},
		"contained":  {&mu, under(&mu, func() { panics.Do(func() error { guilty(); return nil }) }), false},
		"no panic":   {&mu, under(&mu, nothing), false},
		"not locked": {&mu, guilty, false},
		"during":     {&mu, func() { defer under(&mu, nothing)(); guilty() }, false},
	}
	const env = "MILKWEED_TEST_BROKEN"
	if c, ok := cases[os.Getenv(env)]; ok {
		var err error
		log := logged(func() { err = panics.Do(func() error { c.f(); return nil }) })
		if isBroken() != c.broken {
			t.Errorf("broken is %v", isBroken())
		}
		if c.broken && (err == nil || !strings.Contains(log, "panics_test.guilty")) {
			t.Errorf("got the error %v and the log %s", err, log)
		}
		locked := make(chan struct{})
		go func() {
			c.lock.Lock()
			close(locked)
		}()
		wait := 30 * time.Second
		if c.broken {
			wait = 100 * time.Millisecond
		}
		select {
		case <-locked:
			if c.broken {
				t.Error("the lock is released")
			}
		case <-time.After(wait):
			if !c.broken {
				t.Error("the lock stays locked")
			}
		}
		return
	}
	for name := range cases {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBroken$", "-test.v")
		cmd.Env = append(os.Environ(), env+"="+name)
		if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), "--- PASS: TestBroken") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func BenchmarkMutex(b *testing.B) {
	for name, lock := range map[string]sync.Locker{"sync": new(sync.Mutex), "panics": new(panics.Mutex)} {
		b.Run(name, func(b *testing.B) {
			n := 0
			count := func() {
				lock.Lock()
				defer lock.Unlock()
				n++
			}
			for b.Loop() {
				count()
			}
		})
	}
}
