package tiers

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// What a tier may lack for a copy, although its quota has room: see Tier.Lacks.
var (
	ErrDiskFull = errors.New("its disk is full")
	ErrNoInodes = errors.New("its file system has no inodes left, and can hold no more files")
	ErrTooLarge = errors.New("its file system, or RLIMIT_FSIZE, does not allow files of this size")
)

// A shortage is what the device of a tier lacks for copies of some sizes. The zero value is that of a
// device that lacks nothing.
type shortage struct {
	cause    error     // ErrDiskFull, ErrNoInodes or drivers.ErrNoRecord; nil: nothing
	bytes    int64     // what the smallest copy occupies that was not possible
	measured bool      // statfs(2) shows it; otherwise only an operation has failed
	until    time.Time // when the next copy of that size is tried
}

// shortTime is the time after which a copy is tried for which the device had no room.
const shortTime = 10 * time.Second

// lacksNow reports whether the device has lacked something for a copy of bytes a short time ago; s.mu
// must be held.
func (s *space) lacksNow(bytes int64, now time.Time) bool {
	return s.lacks(bytes) == ErrTooLarge || s.lacks(bytes) != nil && now.Before(s.short.until)
}

// lacks returns what the device lacked for a copy of bytes when that was tried last, or nil; s.mu must
// be held.
func (s *space) lacks(bytes int64) error {
	switch {
	case s.tooLarge > 0 && bytes >= s.tooLarge:
		return ErrTooLarge
	case s.short.cause != nil && bytes >= s.short.bytes:
		return s.short.cause
	}
	return nil
}

// runShort records a shortage, and reports whether it is a new one. What it was before counts for a short
// time only, so that large copies for which there is no room do not prevent small ones.
func (s *space) runShort(found shortage, now time.Time) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = s.short.cause != found.cause
	if !first && now.Before(s.short.until) {
		found.bytes = min(found.bytes, s.short.bytes)
	}
	s.short = found
	return first
}

// recovered ends a shortage if the device has room for what it lacked, and reports whether it did.
func (s *space) recovered(room func(shortage) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short.cause == nil || !room(s.short) {
		return false
	}
	s.short = shortage{}
	return true
}

// limitSize records that a copy of bytes is too large for the file system, and reports whether smaller
// ones were possible before.
func (s *space) limitSize(bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tooLarge > 0 && s.tooLarge <= bytes {
		return false
	}
	s.tooLarge = bytes
	return true
}

// Lacks returns what the tier lacked for a copy of size bytes when such a copy was tried last, although
// its quota has room. It returns nil if that has been mended since, or nothing is known.
func (t *Tier) Lacks(size int64) error {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	return t.space.lacks(t.Allocated(size))
}

// lackOf returns what a device lacks for a copy of bytes, or nil.
func lackOf(device drivers.Statfs, bytes int64) error {
	switch {
	case device.Files > 0 && device.FilesFree <= 0:
		return ErrNoInodes
	case bytes > device.Available:
		return ErrDiskFull
	}
	return nil
}

// noteShortage records that the device lacks something for a copy of bytes.
func (t *Tier) noteShortage(cause error, bytes int64, measured bool) {
	if cause == ErrNoInodes {
		bytes = 1 // of any size
	}
	now := time.Now()
	found := shortage{cause, max(bytes, 1), measured, now.Add(shortTime)}
	if t.space.runShort(found, now) {
		t.log.Warn("the tier takes no more copies, although its quota has room", "reason", found.describe())
	}
}

// noteRefused records err, of a copy of size bytes, if it says that the device has no room, or that the
// copy, or the file with the records of all copies, is too large for the file system.
func (t *Tier) noteRefused(err error, size int64) {
	bytes := t.Allocated(size)
	switch {
	case errors.Is(err, drivers.ErrNoRecord):
		t.noteShortage(drivers.ErrNoRecord, bytes, false)
	case errors.Is(err, syscall.EFBIG):
		if t.space.limitSize(max(bytes, 1)) {
			t.log.Warn("the tier takes no large copies", "reason", ErrTooLarge, "from_bytes", size)
		}
	case isFull(err):
		cause, measured := ErrDiskFull, false
		if device, err := t.device(context.Background()); err == nil {
			switch lack := lackOf(device, bytes); {
			case lack != nil:
				cause, measured = lack, true
			case device.Files > 0 && device.FilesFree < fewInodes:
				cause = ErrNoInodes
			}
		}
		t.noteShortage(cause, bytes, measured)
	}
}

// fewInodes is the number of free inodes below which a file system that reports no room is taken to
// lack inodes: some keep a few for themselves.
const fewInodes = 64

// checkShortage ends a shortage that the device has shown, and shows no more.
func (t *Tier) checkShortage(ctx context.Context) {
	t.space.mu.Lock()
	short := t.space.short
	t.space.mu.Unlock()
	if !short.measured {
		return
	}
	if device, err := t.device(ctx); err == nil && lackOf(device, short.bytes) == nil {
		t.endShortage(func(now shortage) bool { return now == short })
	}
}

// endShortage ends a shortage if room reports that the device has room for what it lacked.
func (t *Tier) endShortage(room func(shortage) bool) {
	if t.space.recovered(room) {
		t.log.Info("the tier takes copies again")
	}
}

// describe returns what the device lacks, or nil.
func (s shortage) describe() error {
	if s.cause == ErrDiskFull && s.bytes >= 1<<20 {
		return fmt.Errorf("%w: it has no room for copies of %d MiB", s.cause, s.bytes>>20)
	}
	return s.cause
}
