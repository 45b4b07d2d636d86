package fs_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// A panic below a request fails at most that request, with EIO. It is counted, and the mount goes
// on.
func TestPanicFailsOneRequest(t *testing.T) {
	test := func(t *testing.T, mode fs.Mode) {
		fill, _ := mixed(t)
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, fill)
		for i, op := range []drivertest.Op{drivertest.OpStat, drivertest.OpOpen, drivertest.OpRead, drivertest.OpReadDir} {
			folder := fmt.Sprintf("class%d", i)
			before := panics.Count()
			remove := s.from.Add(drivertest.Rule{Op: op, Match: func(name string) bool { return strings.HasPrefix(name, folder) }, Panic: true})
			out, err := trySh(`ls "$1" >/dev/null && cat "$1"/* >/dev/null`, s.in(folder))
			if err == nil || !strings.Contains(out, syscall.EIO.Error()[:12]) && !strings.Contains(out, "Input/output error") {
				t.Errorf("%s: got %v and %s", op, err, out)
			}
			if panics.Count() == before {
				t.Errorf("%s: no panic is counted", op)
			}
			remove()
		}
		s.epoch(1)
	}
	for _, mode := range modes { // one after the other, because the panics of the process are counted
		t.Run(mode.String(), func(t *testing.T) { test(t, mode) })
	}
}

// A panic in a tier is no error of a job: the file is read from the source.
func TestPanicInTier(t *testing.T) {
	if testing.Short() {
		t.Skip("has a daemon for each place of a panic")
	}
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		fill, _ := mixed(t)
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, fill)
		for i, op := range []drivertest.Op{drivertest.OpCreate, drivertest.OpWrite, drivertest.OpReadBack, drivertest.OpCommit, drivertest.OpStat, drivertest.OpRead} {
			s.to[0].Add(drivertest.Rule{Op: op, P: 0.5, Panic: true})
			s.epoch(i)
			s.forgetPages()
		}
		s.to[0].Clear()
		s.epoch(10)
	})
}

// A panic outside storage, in the method of a request, is answered, too.
func TestPanicInOpen(t *testing.T) {
	s := newStack(t, stackOptions{wrap: func(o fs.Opener) fs.Opener { return &panicking{Opener: o} }}, func(source string) {
		write(t, source, "bad", 1000, 1)
		write(t, source, "good", 1000, 1)
	})
	if out, err := trySh(`cat "$1"`, s.in("bad")); err == nil || !strings.Contains(out, "Input/output error") {
		t.Errorf("got %v and %q", err, out)
	}
	sh(t, `cmp "$1" "$2"`, s.in("good"), s.source+"/good")
}

// A panicking is an Opener that panics for the file bad, and whose Objects panic when a spliced
// reply ends.
type panicking struct{ fs.Opener }

func (p *panicking) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	if e.Name() == "bad" {
		panic("open")
	}
	o, err := p.Opener.Open(ctx, e)
	return &badRelease{o}, err
}

// A badRelease is an Object that panics when a spliced reply ends.
type badRelease struct{ drivers.Object }

func (b *badRelease) SpliceDescriptor() (uintptr, func(int), error) {
	s, ok := drivers.As[drivers.Splicer](b.Object)
	if !ok {
		return 0, nil, drivers.ErrRetry
	}
	fd, release, err := s.SpliceDescriptor()
	return fd, func(n int) {
		release(n)
		panic("release")
	}, err
}

// A panic after a spliced reply does not end the mount.
func TestPanicAfterReply(t *testing.T) {
	s := newStack(t, stackOptions{memory: true, quotas: []tiers.Quota{bytesQuota(1 << 20)}, wrap: func(o fs.Opener) fs.Opener {
		return &panicking{Opener: o}
	}}, func(source string) { write(t, source, "good", 100_000, 1) })
	e, err := s.names.Resolve(t.Context(), "good")
	s.check(err)
	if outcome, err := s.handler.Place(t.Context(), e); outcome != placement.Placed {
		t.Fatalf("not placed: %v", err)
	}
	before := panics.Count()
	for range 2 {
		sh(t, `cmp "$1" "$2"`, s.in("good"), s.source+"/good")
		s.forgetPages()
	}
	if panics.Count() == before {
		t.Error("no reply was spliced")
	}
}
