package check

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	data, err := os.ReadFile(filepath.Join(h.root, "proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	var mounts []mount
	for line := range strings.Lines(string(data)) {
		// 36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda1 rw
		before, after, _ := strings.Cut(line, " - ")
		place, what := strings.Fields(before), strings.Fields(after)
		if len(place) < 5 || len(what) < 2 {
			continue
		}
		mounts = append(mounts, mount{unescape(place[4]), what[0], unescape(what[1])})
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

// unescape undoes what the kernel does to blanks, tabs, newlines and
// backslashes: "\040" is a blank.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
