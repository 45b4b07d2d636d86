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
	fstype string // milkweed.Type for a Milkweed mount
	source string // the device or the source of the mount
}

// mounts returns all mounts, the latest last. It does not access the mounted file
// systems, so it cannot hang.
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

// mountAt returns the mount on path itself. It reports false if there is none.
func (h host) mountAt(path string) (m mount, ok bool) {
	mounts, _ := h.mounts()
	for _, candidate := range mounts {
		if candidate.point == path {
			m, ok = candidate, true // a later mount hides an earlier one
		}
	}
	return m, ok
}

// mountOf returns the mount that contains path.
func (h host) mountOf(path string) mount {
	var m mount
	mounts, _ := h.mounts()
	for _, candidate := range mounts {
		if len(candidate.point) >= len(m.point) && contains(candidate.point, path) {
			m = candidate
		}
	}
	return m
}

// contains reports whether path is dir or below it.
func contains(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
