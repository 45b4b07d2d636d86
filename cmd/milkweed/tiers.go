package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/tiers"
)

// openTimeout bounds how long a mount waits for its tiers to be opened. After that, a tier is
// opened while the mount is used. Tests on a busy machine set a longer time, in seconds.
var openTimeout = func() time.Duration {
	if n, err := strconv.Atoi(os.Getenv(openTimeoutEnv)); err == nil {
		return time.Duration(n) * time.Second
	}
	return 500 * time.Millisecond
}()

const openTimeoutEnv = "MILKWEED_TEST_OPEN_TIMEOUT"

var (
	errNotOpen     = errors.New("the tier is not open yet")
	errLateOverlay = errors.New("it is on overlayfs, and was opened after the mount")
)

// openTiers holds the stores of the tiers that are open. A tier that is ill when the mount starts
// is opened later, while the other methods are called.
type openTiers struct {
	mu      sync.Mutex // guards the following
	tiers   []openTier // all of the configuration
	overlay bool       // an open tier is on overlayfs, which is a stacked file system
	depth   int        // the stack depth of the mount; 0: not determined
	closed  bool       // no store may be added
}

// An openTier is a tier and its store.
type openTier struct {
	store       *posix.Store // nil: not open
	inMemory    bool
	passthrough error // why the kernel cannot read its files directly; nil if it can
}

// openTiers opens the tiers. A tier that is ill is logged, and opened later. Any other error of a
// tier is returned.
func (d *daemon) openTiers(ctx context.Context) error {
	for i, err := range d.levels.Open(ctx, openTimeout) {
		t := d.cfg.Tiers[i]
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case check.IsIll(t.Path, err):
			d.log.Warn("the mount starts without a tier, which is used when it works", "tier", t.Name, "err", err, "remedy", tierRemedy(err))
		default:
			return &exit.Error{Code: exit.Tier, Err: fmt.Errorf("tier %s: %w", t.Name, err), Remedy: tierRemedy(err)}
		}
	}
	return nil
}

// tierConfigs returns the tiers for tiers.New.
func (d *daemon) tierConfigs() []tiers.Config {
	var configs []tiers.Config
	for i, t := range d.cfg.Tiers {
		d.tiers.tiers = append(d.tiers.tiers, openTier{passthrough: errNotOpen})
		configs = append(configs, tiers.Config{
			Name: t.Name, Path: t.Path,
			Quota: tiers.Quota{Bytes: t.Quota.Bytes, Percent: t.Quota.Percent},
			Open:  func() (drivers.Store, error) { return d.openTier(i) },
		})
		if w := d.cfg.Placement.Window; i == 0 {
			configs[i].Window = tiers.Quota{Bytes: w.Bytes, Percent: w.Percent}
		}
	}
	return configs
}

// openTier opens a tier of the configuration. It may hang.
func (d *daemon) openTier(i int) (drivers.Store, error) {
	t := d.effective.Load().Tiers[i]
	if err := check.Tier(t, d.cfg.Source.Name()); err != nil {
		return nil, err
	}
	store, err := posix.OpenStore(posix.StoreConfig{
		Tier:       t.Path,
		Dataset:    d.dataset,
		Source:     d.cfg.Source.Name(),
		Mountpoint: d.cfg.Mount.Point,
		Log:        d.log.With("tier", t.Name),
	})
	if err != nil {
		return nil, err
	}
	var passthrough error
	if check.AllowsPassthrough(d.cfg) {
		passthrough = check.TierPassthrough(t)
	}
	if !d.tiers.add(i, store, passthrough) {
		store.Close()
		return nil, fs.ErrClosed
	}
	if err := check.RememberMount(t.Path); err != nil {
		d.log.Info("where the tier is mounted is not remembered", "tier", t.Name, "err", err)
	}
	return store, nil
}

// add adds the store of tier i, unless the tiers were closed. passthrough is the result of
// check.TierPassthrough.
func (o *openTiers) add(i int, s *posix.Store, passthrough error) bool {
	// Without the lock, since these call the file system.
	overlay, inMemory := s.FSType() == "overlay", s.Profile().Latency == drivers.LatencyMemory
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	if passthrough == nil && overlay && o.depth == 1 {
		passthrough = errLateOverlay
	}
	o.tiers[i] = openTier{s, inMemory, passthrough}
	o.overlay = o.overlay || overlay
	return true
}

// get returns tier i.
func (o *openTiers) get(i int) openTier {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tiers[i]
}

// stackDepth determines the stack depth of the mount: 2 if an open tier is on overlayfs, else 1.
// The kernel allows a depth of 2 in all, so that with 2 no file system can be stacked on the mount.
func (o *openTiers) stackDepth() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.depth = 1
	if o.overlay {
		o.depth = 2
	}
	return o.depth
}

// close closes the stores, all at once, since each may wait for its disk. A store that is opened
// later is closed at once.
func (o *openTiers) close() error {
	o.mu.Lock()
	o.closed = true
	all := slices.Clone(o.tiers)
	o.mu.Unlock()
	errs := make([]error, len(all))
	var closing sync.WaitGroup
	for i, t := range all {
		if t.store != nil {
			closing.Go(func() { errs[i] = panics.Do(t.store.Close) })
		}
	}
	closing.Wait()
	return errors.Join(errs...)
}

// tierRemedy returns the remedy for a tier that cannot be opened.
func tierRemedy(err error) string {
	var (
		checked *check.TierError
		locked  *posix.LockedError
		foreign *posix.ForeignError
		notOurs *posix.NotOursError
	)
	switch {
	case errors.As(err, &checked):
		return checked.Remedy
	case errors.As(err, &locked):
		return "Only one mount can use a dataset in a tier: unmount the other, or give this one other tiers."
	case errors.As(err, &foreign):
		return "Choose a tier path that belongs to this user, such as one with the user name in it."
	case errors.As(err, &notOurs):
		return "Milkweed does not change it. Choose another tier path, or move that directory away."
	case errors.Is(err, drivers.ErrAbandoned):
		return "Check its disk."
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "Make room on its disk: `df` and `df -i` show what is used."
	case errors.Is(err, unix.EFBIG):
		return "Raise the limit on the size of files (ulimit -f)."
	}
	return "Choose a tier path that this user may write to."
}
