package tiers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A crowdedStore is on a device that other programs use.
type crowdedStore struct {
	*drivertest.Faults
	available, inodes atomic.Int64
}

func (s *crowdedStore) Statfs(context.Context) (drivers.Statfs, error) {
	return drivers.Statfs{Total: 1 << 40, Available: s.available.Load(), Files: 1000, FilesFree: s.inodes.Load()}, nil
}

// crowded starts a tier with a quota that its device cannot give, and returns its log.
func crowded(t *testing.T, available, inodes int64) (s *crowdedStore, tier *Tier, log *bytes.Buffer, stop func()) {
	t.Helper()
	s = &crowdedStore{Faults: drivertest.NewFaults(drivertest.NewMem(0))}
	s.available.Store(available)
	s.inodes.Store(inodes)
	log = new(bytes.Buffer)
	h, err := New(drivertest.NewMem(0), []Config{{Name: "ssd", Store: s, Quota: Quota{Bytes: 1 << 30}}}, Options{},
		slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx)
	}()
	h.WaitScanned(bg)
	return s, h.Tier(1), log, func() {
		cancel()
		<-ended
	}
}

// While other programs have filled the device, or taken its inodes, the tier has no room for what does not
// fit. It stays healthy, and one line of the log names the reason. It takes copies again when there is room.
func TestShortage(t *testing.T) {
	tests := map[string]struct {
		available, inodes int64
		want              error
		smaller           error // of a copy that is smaller than the others
		mend              func(s *crowdedStore)
	}{
		"bytes":  {100 << 10, 500, ErrDiskFull, nil, func(s *crowdedStore) { s.available.Store(1 << 30) }},
		"inodes": {1 << 30, 0, ErrNoInodes, ErrNoInodes, func(s *crowdedStore) { s.inodes.Store(10) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, tier, log, stop := crowded(t, tt.available, tt.inodes)
				defer stop()
				for range 20 {
					if _, ok := tier.Reserve(bg, 2<<20); ok {
						t.Fatal("room that the device does not have")
					}
					time.Sleep(7 * time.Second)
				}
				if got := tier.Lacks(2 << 20); got != tt.want {
					t.Errorf("a copy of 2 MiB lacks %v, want %v", got, tt.want)
				}
				if got := tier.Lacks(8 << 10); got != tt.smaller {
					t.Errorf("a copy of 8 KiB lacks %v, want %v", got, tt.smaller)
				}
				if ok, err := place(tier, "small", 8<<10); ok != (tt.smaller == nil) || err != nil {
					t.Errorf("a small copy: %v, %v", ok, err)
				}
				tier.Reserve(bg, 2<<20)
				if tier.Fits(2 << 20) {
					t.Error("a copy fits right after the device had no room for it")
				}
				st := tier.Stats()
				if st.Health != Healthy || !errors.Is(st.Short, tt.want) {
					t.Errorf("health %v, short of %v; want %v", st.Health, st.Short, tt.want)
				}
				if n := strings.Count(log.String(), "takes no more copies"); n != 1 || !strings.Contains(log.String(), tt.want.Error()) {
					t.Errorf("%d lines of the log: %s", n, log)
				}

				tt.mend(s)
				time.Sleep(2 * pathInterval) // nobody asks for room
				if st := tier.Stats(); st.Short != nil || tier.Lacks(2<<20) != nil || !tier.Fits(2<<20) {
					t.Errorf("short of %v when there is room again", st.Short)
				}
				mustPlace(t, tier, "large", 2<<20)
				if n := strings.Count(log.String(), "takes copies again"); n != 1 {
					t.Errorf("%d lines of the log: %s", n, log)
				}
			})
		})
	}
}

// While large copies are refused again and again, small ones are made as soon as there is room for them.
func TestSmallCopiesInAShortage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tier, _, stop := crowded(t, 0, 500)
		defer stop()
		if _, ok := tier.Reserve(bg, 8<<10); ok {
			t.Fatal("room on a full disk")
		}
		s.available.Store(1 << 20)
		time.Sleep(shortTime + time.Second)
		for i := range 10 {
			if _, ok := tier.Reserve(bg, 2<<20); ok {
				t.Fatal("room for more than the disk has")
			}
			mustPlace(t, tier, fmt.Sprint("small", i), 8<<10)
			time.Sleep(time.Second)
		}
		if st := tier.Stats(); !errors.Is(st.Short, ErrDiskFull) {
			t.Errorf("short of %v", st.Short)
		}
	})
}

// What only an operation has shown, as with a quota of the file system, ends when a copy succeeds.
func TestShortageThatTheDeviceDoesNotShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tier, log, stop := crowded(t, 1<<30, 500)
		defer stop()
		s.Add(drivertest.Rule{Op: drivertest.OpWrite, Name: "large", Err: syscall.EDQUOT})
		early, ok := tier.Reserve(bg, 3<<20)
		if !ok {
			t.Fatal("no room")
		}
		for range 3 {
			if ok, err := place(tier, "large", 2<<20); !ok || !isFull(err) {
				t.Fatalf("got %v, %v", ok, err)
			}
			time.Sleep(2 * pathInterval)
		}
		early.Commit() // it does not show that there is room
		if st := tier.Stats(); !errors.Is(st.Short, ErrDiskFull) || tier.Lacks(2<<20) == nil {
			t.Errorf("short of %v", st.Short)
		}
		s.Clear()
		mustPlace(t, tier, "large", 2<<20)
		if st := tier.Stats(); st.Short != nil {
			t.Errorf("short of %v after a copy", st.Short)
		}
		if no, again := strings.Count(log.String(), "takes no more copies"), strings.Count(log.String(), "takes copies again"); no != 1 || again != 1 {
			t.Errorf("%d and %d lines of the log: %s", no, again, log)
		}
	})
}

// If the records of the copies have no room, no copies are made, and one is tried every ten seconds.
func TestRecordsHaveNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tier, log, stop := crowded(t, 1<<30, 500)
		defer stop()
		s.Add(drivertest.Rule{Op: drivertest.OpCommit, Err: drivers.ErrNoRecord})
		tries := 0
		for i := range 30 {
			ok, err := place(tier, "f", 1+int64(i%2)<<20)
			if ok {
				tries++
			}
			if ok && !errors.Is(err, drivers.ErrNoRecord) || tier.Stats().Health != Healthy {
				t.Fatalf("%v, %v", err, tier.Stats().Health)
			}
			time.Sleep(time.Second)
		}
		if tries != 3 {
			t.Errorf("%d copies tried in 30 s, want 3", tries)
		}
		if st := tier.Stats(); st.Health != Healthy || !errors.Is(st.Short, drivers.ErrNoRecord) || !errors.Is(tier.Lacks(1), drivers.ErrNoRecord) {
			t.Errorf("%v, short of %v", st.Health, st.Short)
		}
		s.Clear()
		time.Sleep(shortTime)
		mustPlace(t, tier, "f", 1)
		if st := tier.Stats(); st.Short != nil || strings.Count(log.String(), "takes no more copies") != 1 {
			t.Errorf("short of %v after a copy; log: %s", st.Short, log)
		}
	})
}

// Errors that concern one file do not concern the tier. Files that are as large as one that was too
// large have no room there.
func TestErrorsOfOneFile(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpCreate, drivertest.OpWrite, drivertest.OpCommit} {
		for _, err := range []error{
			syscall.EFBIG, syscall.ENAMETOOLONG, fmt.Errorf("%w: %w", drivers.ErrUnfit, syscall.EFBIG),
			fmt.Errorf("%w: %w", drivers.ErrUnfit, syscall.EILSEQ), fmt.Errorf("%w: %w", drivers.ErrUnfit, syscall.EINVAL),
		} {
			t.Run(fmt.Sprint(op, err), func(t *testing.T) {
				s, tier, _, stop := crowded(t, 1<<30, 500)
				defer stop()
				s.Add(drivertest.Rule{Op: op, Name: "bad", Err: err})
				tooLarge := errors.Is(err, syscall.EFBIG)
				for i := range 6 {
					if ok, _ := place(tier, "bad", 2<<20); ok != (i == 0 || !tooLarge) {
						t.Errorf("attempt %d: room %v", i, ok)
					}
				}
				if st := tier.Stats(); st.Health != Healthy || st.Short != nil {
					t.Errorf("%v, short of %v", st.Health, st.Short)
				}
				if got := tier.Lacks(2<<20) == ErrTooLarge; got != tooLarge {
					t.Errorf("too large: %v", got)
				}
				for i := range 5 {
					mustPlace(t, tier, fmt.Sprint("good", i), 1<<20)
				}
			})
		}
	}
}
