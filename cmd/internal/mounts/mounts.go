// Package mounts reads the kernel's table of mounts. It calls no mounted file system, so that
// one that hangs cannot block it.
package mounts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// A Mount is one line of the table.
type Mount struct {
	Point   string // the mount point, absolute and without symbolic links
	Root    string // the directory of the file system that is mounted, "/" if it is all
	Type    string // of the file system, such as "fuse.milkweed"
	Source  string // the device or directory that is mounted
	Options string // of the file system, separated by commas
	Dev     uint64 // device number of the file system
	ID      int    // of the mount, also after it was moved; the kernel gives that of one that has ended to another

	// PeerGroup is the name of the peer group, or "" if the mount is in none. See mount_namespaces(7).
	PeerGroup string

	// ReadOnly: it was mounted read-only. If false, the kernel may still have made the file system
	// read-only, after an error.
	ReadOnly bool
}

// Autofs is the type of the triggers of automounters.
const Autofs = "autofs"

// IsTrigger reports whether m is a trigger on a mount point: another file system is mounted there at
// the first access. An indirect trigger is not one: it is a directory with mount points.
func (m Mount) IsTrigger() bool {
	return m.Type == Autofs && !slices.Contains(strings.Split(m.Options, ","), "indirect")
}

// A Table lists mounts in the order in which they were mounted. Of several mounts on one mount
// point, the last hides the others.
type Table []Mount

// Self is the table of this process.
const Self = "/proc/self/mountinfo"

// Read reads a table from a file, such as Self.
func Read(file string) (Table, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Parse(f)
}

// Parse reads a table in the format of proc_pid_mountinfo(5).
func Parse(r io.Reader) (Table, error) {
	infos, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, err
	}
	t := make(Table, len(infos))
	for i, m := range infos {
		t[i] = Mount{
			Point: m.Mountpoint, Root: m.Root, Type: m.FSType, Source: m.Source, Options: m.VFSOptions,
			Dev: unix.Mkdev(uint32(m.Major), uint32(m.Minor)), ID: m.ID,
			ReadOnly: slices.Contains(strings.Split(m.Options, ","), "ro"),
		}
		for word := range strings.FieldsSeq(m.Optional) {
			if group, ok := strings.CutPrefix(word, "shared:"); ok {
				t[i].PeerGroup = group
			}
		}
	}
	return t, nil
}

// Of returns the mount that path, which is absolute, is in. ok is false if the table has none.
func (t Table) Of(path string) (m Mount, ok bool) {
	for _, each := range t {
		if paths.Within(path, each.Point) && len(each.Point) >= len(m.Point) {
			m, ok = each, true
		}
	}
	return m, ok
}

// At returns the mount whose mount point is path. ok is false if path is not a mount point.
func (t Table) At(path string) (m Mount, ok bool) {
	m, ok = t.Of(path)
	return m, ok && m.Point == path
}

// Has reports whether the file system dev is mounted.
func (t Table) Has(dev uint64) bool {
	return slices.ContainsFunc(t, func(m Mount) bool { return m.Dev == dev })
}

// Points returns the mount points of the file system dev that no other mount hides, the first one first.
func (t Table) Points(dev uint64) (points []string) {
	for _, m := range t {
		if top, _ := t.Of(m.Point); m.Dev == dev && top.Dev == dev {
			points = append(points, m.Point)
		}
	}
	return points
}

// ErrNotMounted is the error of Connection if the file system is not mounted there any more.
var ErrNotMounted = errors.New("it is not mounted any more")

// Connection returns the connection of the FUSE file system dev, which is mounted at point in this
// mount namespace. The caller closes it.
func Connection(dev uint64, point string) (*fusectl.Connection, error) {
	c, openErr := fusectl.Open(dev)
	t, err := Read(Self) // after the open: the number may be that of another file system by now
	if m, ok := t.At(point); err == nil && (!ok || m.Dev != dev) {
		err = fmt.Errorf("%s: %w", point, ErrNotMounted)
	}
	if err = cmp.Or(err, openErr); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// AwaitUnmount returns nil when the file system dev is not mounted any more in the mount namespace
// of this process. It may still be mounted in others. It reads the table at least twice a second,
// but uses at most a fiftieth of the time: poll(2) of the table misses unmounts (Linux 6.18).
func AwaitUnmount(ctx context.Context, dev uint64) error {
	for {
		start := time.Now()
		t, err := Read(Self)
		if err != nil || !t.Has(dev) {
			return err
		}
		select {
		case <-time.After(max(300*time.Millisecond, 50*time.Since(start))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Below returns the mount points below dir, in the order of mounting. dir itself is not one.
func Below(dir string) ([]string, error) {
	t, err := Read(Self)
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range t {
		if name, ok := paths.Rel(m.Point, dir); ok && name != "." {
			points = append(points, m.Point)
		}
	}
	return points, nil
}
