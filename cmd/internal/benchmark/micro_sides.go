package benchmark

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
	"github.com/milkweedfs/milkweed/cmd/internal/sandbox"
)

// A microSide is a side of group micro.
type microSide struct {
	name    string
	folder  string
	isMount bool // the kernel has pages for the mount besides those of the files
	readers *reader.Group
	remove  func() error // unmounts; nil if nothing is mounted
}

// microSides starts all sides that this machine permits, and notes in g which it
// does not. The caller must call removeSides, also after an error.
func (b *benchmark) microSides(ctx context.Context, g *bench.Group) (sides []microSide, err error) {
	readers, err := reader.Start(ctx, microReaders, nil)
	if err != nil {
		return nil, err
	}
	sides = []microSide{{name: bench.Native, folder: b.data, readers: readers}}
	leaveOut := func(name string, why error) {
		first, _, _ := strings.Cut(why.Error(), "\n")
		g.LeftOut = append(g.LeftOut, name+": "+first)
	}
	for _, mode := range b.Modes {
		b.progress("micro: mount and warm up %s", mode)
		s, err := b.placedSide(ctx, mode, mode, nil)
		if err == nil {
			sides = append(sides, s)
		} else if ctx.Err() == nil {
			leaveOut(mode, err)
		} else {
			return sides, err
		}
	}
	if user, err := unprivileged(); err != nil {
		leaveOut("user", err)
	} else if s, err := b.placedSide(ctx, "user", "auto", user); err != nil {
		leaveOut("user", err)
	} else {
		sides = append(sides, s)
		g.Caption = append(g.Caption, fmt.Sprintf("user is a mount in mode auto that uid %d made with fusermount3.", user.Uid))
	}
	if b.noRclone != nil {
		leaveOut(bench.Rclone, b.noRclone)
		return sides, nil
	}
	s, err := b.rcloneSide(ctx)
	if err == nil {
		sides = append(sides, s)
		g.Caption = append(g.Caption, "rclone is rclone mount "+sandbox.RcloneOptions+", with all files in its cache.")
	}
	return sides, err
}

// placedSide mounts the dataset with Milkweed and places all files.
func (b *benchmark) placedSide(ctx context.Context, name, mode string, user *syscall.Credential) (s microSide, err error) {
	m, err := b.box.Mount(ctx, sandbox.MountConfig{
		Name: name, Source: b.data, Mode: mode, User: user, Private: true,
		Tiers: []sandbox.Tier{{Name: "tier", Quota: b.microSpace()}},
	})
	if err != nil {
		return s, err
	}
	if err := m.Warmup(ctx); err != nil {
		return s, errors.Join(err, m.Remove())
	}
	return startSide(ctx, name, m.Point, user, m.Remove)
}

// rcloneSide mounts the dataset with rclone. The comparison of all files fills the
// cache of rclone.
func (b *benchmark) rcloneSide(ctx context.Context) (s microSide, err error) {
	m, err := b.box.MountRclone(ctx, ":local:"+b.data, "")
	if err != nil {
		return s, err
	}
	return startSide(ctx, bench.Rclone, m.Point, nil, m.Remove)
}

// startSide starts the readers of a mount.
func startSide(ctx context.Context, name, point string, user *syscall.Credential, remove func() error) (microSide, error) {
	readers, err := reader.Start(ctx, microReaders, user)
	if err != nil {
		return microSide{}, errors.Join(err, remove())
	}
	return microSide{name: name, folder: point, isMount: true, readers: readers, remove: remove}, nil
}

// removeSides stops the readers of each side and unmounts it.
func removeSides(sides []microSide) error {
	var errs []error
	for _, s := range sides {
		s.readers.Stop()
		if s.remove != nil {
			errs = append(errs, s.remove())
		}
	}
	return errors.Join(errs...)
}

// nobodyID is the id of a user without privileges.
const nobodyID = 65534

// unprivileged returns a user that can mount only with fusermount3, or an error
// if this machine does not permit that.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("without root every mount is one without privileges")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return nil, err
	}
	var s unix.Stat_t
	if err := unix.Stat("/dev/fuse", &s); err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	if s.Mode&0o006 != 0o006 {
		return nil, fmt.Errorf("uid %d has no permission to open /dev/fuse", nobodyID)
	}
	return &syscall.Credential{Uid: nobodyID, Gid: nobodyID}, nil
}
