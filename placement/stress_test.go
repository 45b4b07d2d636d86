package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// The injected errors. A reader must not get those of tiers.
var (
	errTier   = errors.New("injected into a tier")
	errSource = errors.New("injected into the source")
)

// TestStress runs readers, faults and changes of files at random; in half of the runs the
// handler is stopped in the middle. Each read returns bytes of one version, each error is the
// source's, and nothing stays open.
func TestStress(t *testing.T) {
	if testing.Short() {
		t.Skip("has many readers for long")
	}
	t.Parallel()
	const seeds, time, latency = uint64(12), 700 * time.Millisecond, 100 * time.Microsecond
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newStress(t, seed, nil).run(time)
		})
	}
	for seed := range seeds / 2 {
		t.Run(fmt.Sprint("bucket ", seed), func(t *testing.T) {
			t.Parallel()
			newStress(t, seed, &drivertest.Bucket{Latency: latency, Length: int64(1+seed%3) << 20}).run(time)
		})
	}
}

// A stress is one run of TestStress.
type stress struct {
	*rig
	seed uint64

	mu       sync.Mutex // guards the following
	versions map[string]map[time.Time][]byte
}

const stressFiles = 12

// newStress makes a stress. Its source is the bucket, unless that is nil.
func newStress(t *testing.T, seed uint64, bucket *drivertest.Bucket) *stress {
	quotas := [][]int64{{1 << 30}, {4 << 20, 16 << 20}, {2 << 20}}[seed%3]
	s := &stress{seed: seed, versions: make(map[string]map[time.Time][]byte)}
	s.rig = newRig(t, rigOptions{
		quotas: quotas, workers: 1 + int(seed%4), ttl: time.Millisecond, bucket: bucket,
		tier: tiers.Options{Timeout: 20 * time.Millisecond, Probe: 5 * time.Millisecond},
	})
	for i := range stressFiles {
		s.change(rand.New(rand.NewPCG(seed, uint64(i))), i, false)
	}
	return s
}

func (s *stress) name(i int) string { return fmt.Sprintf("d%d/f%d", i%3, i) }

// change gives a file a new version, as a new file or in place.
func (s *stress) change(rng *rand.Rand, i int, inPlace bool) {
	data := random(rng.Uint64(), rng.IntN(3<<20))
	s.mu.Lock()
	defer s.mu.Unlock()
	var mtime time.Time
	if inPlace {
		s.mem.Overwrite(s.name(i), data)
		info, err := s.mem.Stat(context.Background(), s.name(i))
		if err != nil {
			s.t.Error(err)
		}
		mtime = info.Mtime
	} else {
		mtime = s.mem.Put(s.name(i), data).Mtime
	}
	if s.versions[s.name(i)] == nil {
		s.versions[s.name(i)] = make(map[time.Time][]byte)
	}
	s.versions[s.name(i)][mtime] = data
}

// want returns the content of a version.
func (s *stress) want(name string, mtime time.Time) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, data := range s.versions[name] {
		if t.Equal(mtime) {
			return data
		}
	}
	s.t.Errorf("%s never had a version of %v", name, mtime)
	return nil
}

func (s *stress) run(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var all sync.WaitGroup
	for i := range uint64(8) {
		all.Go(func() { s.reader(ctx, rand.New(rand.NewPCG(s.seed, 100+i))) })
	}
	all.Go(func() { s.faults(ctx, rand.New(rand.NewPCG(s.seed, 200))) })
	all.Go(func() { s.changes(ctx, rand.New(rand.NewPCG(s.seed, 300))) })
	if s.seed%2 == 0 {
		time.Sleep(d / 2)
		s.stop()
	}
	all.Wait()
	for i, data := range s.latest() { // without faults, every file is readable
		got, err := s.rig.read(s.name(i))
		if errors.Is(err, drivers.ErrChanged) { // since it was listed: the kernel would look the name up again
			got, err = s.rig.read(s.name(i))
		}
		if err != nil || !bytes.Equal(got, data) {
			s.t.Errorf("%s after the faults: %v, or wrong bytes", s.name(i), err)
		}
	}
	if s.seed%2 != 0 {
		s.settled()
	}
}

// latest clears all faults and returns the present content of the files.
func (s *stress) latest() (data [stressFiles][]byte) {
	s.from.Clear()
	for _, f := range s.to {
		f.Clear()
	}
	time.Sleep(200 * time.Millisecond) // until the TTL of names is over
	for i := range data {
		info, err := s.mem.Stat(context.Background(), s.name(i))
		s.check(err)
		data[i] = s.want(s.name(i), info.Mtime)
	}
	return data
}

// reader opens files and reads in them.
func (s *stress) reader(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		name := s.name(rng.IntN(stressFiles))
		e, err := s.names.Resolve(ctx, name)
		if err != nil {
			s.allowed(ctx, "resolve", err)
			continue
		}
		if rng.IntN(10) == 0 {
			if _, err := s.handler.Place(ctx, e); err != nil && ctx.Err() == nil && errors.Is(err, errFailed) {
				s.t.Errorf("place: %v", err)
			}
			continue
		}
		obj, err := s.handler.Open(ctx, e)
		if err != nil {
			s.allowed(ctx, "open", err)
			continue
		}
		s.reads(ctx, rng, name, obj)
		obj.Close()
	}
}

// reads reads one open file, sometimes with several goroutines.
func (s *stress) reads(ctx context.Context, rng *rand.Rand, name string, obj drivers.Object) {
	want := s.want(name, obj.Info().Mtime)
	if len(want) == 0 {
		return
	}
	var readers sync.WaitGroup
	for range 1 + rng.IntN(3) {
		seed := rng.Uint64()
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for range rng.IntN(20) {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(100))*time.Millisecond)
				off := rng.IntN(len(want))
				got := make([]byte, min(1+rng.IntN(300<<10), len(want)-off))
				if err := readAt(ctx, obj, got, int64(off)); err != nil {
					s.allowed(ctx, "read", err)
				} else if !bytes.Equal(got, want[off:off+len(got)]) {
					s.t.Errorf("%s: wrong bytes at %d+%d", name, off, len(got))
				}
				cancel()
			}
		})
	}
	readers.Wait()
}

// allowed fails the test if a reader must not get err.
func (s *stress) allowed(ctx context.Context, what string, err error) {
	switch {
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
	case errors.Is(err, drivers.ErrChanged), errors.Is(err, errSource), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, fs.ErrNotExist):
	default:
		s.t.Errorf("%s: a reader got %v", what, err)
	}
}

// faults adds faults and removes them.
func (s *stress) faults(ctx context.Context, rng *rand.Rand) {
	ops := []drivertest.Op{
		drivertest.OpOpen, drivertest.OpRead, drivertest.OpCreate, drivertest.OpWrite, drivertest.OpReadBack, drivertest.OpCommit,
		drivertest.OpAbort, drivertest.OpClose, drivertest.OpStat, drivertest.OpRemove, drivertest.OpStatfs, drivertest.OpStream, "",
	}
	for ctx.Err() == nil {
		rule := drivertest.Rule{Op: ops[rng.IntN(len(ops))], After: rng.IntN(10), Times: 1 + rng.IntN(20), P: rng.Float64()}
		at, err := s.from, errSource
		if i := rng.IntN(len(s.to) + 2); i < len(s.to) {
			at, err = s.to[i], errTier
			if rng.IntN(3) == 0 {
				err = fmt.Errorf("%w: %w", errTier, syscall.ENOSPC)
			}
		}
		switch rng.IntN(4) {
		case 0:
			rule.Hang = true
		case 1:
			rule.Short = at != s.from || rule.Op == drivertest.OpRead || rule.Op == drivertest.OpStream
		case 2:
			rule.Delay = time.Duration(rng.IntN(5)) * time.Millisecond
		default:
			rule.Err = err
		}
		remove := at.Add(rule)
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
		remove()
		if rng.IntN(2) == 0 {
			at.Release()
		}
	}
	s.from.Release() // the close of a file at the source has no time-out
}

// changes changes files at the source, and removes and retracts copies.
func (s *stress) changes(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		i := rng.IntN(stressFiles)
		switch rng.IntN(5) {
		case 0:
			s.change(rng, i, true)
		case 4:
			if e, err := s.names.Resolve(ctx, s.name(i)); err == nil {
				s.handler.Retract(e)
			}
		case 1:
			s.stores[rng.IntN(len(s.stores))].Remove(ctx, s.name(i))
		default:
			s.change(rng, i, false)
		}
	}
}
