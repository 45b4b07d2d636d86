package check

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// A mount is a line of /proc/self/mountinfo.
type mount struct {
	point  string
	fstype string // milkweed.Type for ours
	source string // what is mounted
}

// mounts lists what is mounted, the latest last. It asks no file system, so it
// does not hang.
func (h host) mounts() ([]mount, error) {
	f, err := os.Open(filepath.Join(h.root, "proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, err
	}
	mounts := make([]mount, len(all))
	for i, m := range all {
		mounts[i] = mount{m.Mountpoint, m.FSType, m.Source}
	}
	return mounts, nil
}

// mountAt returns what is mounted on path itself; ok is false if nothing is.
func (h host) mountAt(path string) (m mount, ok bool) {
	mounts, _ := h.mounts()
	for _, each := range mounts {
		if each.point == path {
			m, ok = each, true // a later mount hides an earlier one
		}
	}
	return m, ok
}

// mountOf returns the mount that path is in.
func (h host) mountOf(path string) mount {
	var m mount
	mounts, _ := h.mounts()
	for _, each := range mounts {
		if len(each.point) >= len(m.point) && contains(each.point, path) {
			m = each
		}
	}
	return m
}

// contains reports whether path is dir or below it.
func contains(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
