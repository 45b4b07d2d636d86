package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

const (
	mib         = 1 << 20
	smallest    = 64 * mib // a tier with less room is not worth having
	diskPercent = 50
)

// DefaultTiers returns the tiers of a mount that is given only SOURCE, by its
// Name, and MOUNTPOINT.
//
// "ram" is a folder in /dev/shm. It may hold half of what that tmpfs has
// available, but no more than a quarter of the memory available, and no more
// than a quarter of what the memory limits of this control group leave. What
// earlier mounts of the same source left there counts as available, so that a
// restart does not make the quota smaller; only the first tenth of a second of
// counting counts, because a mount must be ready at once.
//
// "disk" is a folder in $XDG_CACHE_HOME (~/.cache), with half of what its file
// system has free for us.
//
// A tier that would have less than 64 MiB is left out; it is an error when
// none remains.
func DefaultTiers(source string) ([]Tier, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = "" // no home: no disk tier
	}
	h := host{
		root:  "/",
		shm:   "/dev/shm",
		cache: cache,
		stat:  statfs,
		uid:   os.Getuid(),
	}
	return h.defaultTiers(source)
}

// A host is the machine as DefaultTiers sees it.
type host struct {
	root  string // that /proc and /sys are below
	shm   string // the tmpfs
	cache string // the user's cache folder; "" without one
	uid   int
	stat  func(path string) (available int64, isTmpfs bool, err error)
}

func (h host) defaultTiers(source string) ([]Tier, error) {
	id := DatasetID(source)
	var tiers []Tier
	if t, ok := h.ramTier(id); ok {
		tiers = append(tiers, t)
	}
	if t, ok := h.diskTier(id); ok {
		tiers = append(tiers, t)
	}
	if len(tiers) == 0 {
		return nil, &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("no room for copies: neither %s nor the cache folder (%s) offers 64 MiB", h.shm, h.cache),
			Remedy: "Write a tiering.toml with a [[tier]] that has room, and name it with -c.",
		}
	}
	return tiers, nil
}

func (h host) ramTier(id string) (Tier, bool) {
	available, isTmpfs, err := h.stat(h.shm)
	if err != nil || !isTmpfs {
		return Tier{}, false
	}
	memory, err := h.memAvailable()
	if err != nil {
		return Tier{}, false
	}
	dir := filepath.Join(h.shm, "milkweed-"+strconv.Itoa(h.uid))
	held := heldIn(filepath.Join(dir, id), 100*time.Millisecond)
	quota := min((available+held)/2, (memory+held)/4)
	if left := h.cgroupLeft(); left < math.MaxInt64-held {
		quota = min(quota, (left+held)/4)
	}
	quota -= quota % mib
	return Tier{Name: "ram", Path: dir, Quota: Quota{Bytes: quota}}, quota >= smallest
}

func (h host) diskTier(id string) (Tier, bool) {
	if h.cache == "" {
		return Tier{}, false
	}
	dir := filepath.Join(h.cache, "milkweed")
	t := Tier{Name: "disk", Path: dir, Quota: Quota{Percent: diskPercent}}
	if _, err := os.Stat(filepath.Join(dir, id)); err == nil {
		return t, true // it holds copies, whatever is free beside them
	}
	available, _, err := h.stat(existing(dir))
	return t, err == nil && t.Quota.Of(available) >= smallest
}

// existing returns the nearest of path and its parents that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

func statfs(path string) (available int64, isTmpfs bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, st.Type == unix.TMPFS_MAGIC, nil
}

// heldIn adds up the files below dir for as long as it may take.
func heldIn(dir string, limit time.Duration) int64 {
	var total int64
	deadline := time.Now().Add(limit)
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if time.Now().After(deadline) {
			return fs.SkipAll
		}
		if err != nil {
			return nil // what cannot be seen is not counted
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return total
}

// memAvailable returns the memory that can be had without swapping.
func (h host) memAvailable() (int64, error) {
	const name = "MemAvailable:"
	file := filepath.Join(h.root, "proc/meminfo")
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 54) // of KiB, so that bytes fit
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("%s: no %s", file, name)
}

// A hierarchy is one version of control groups: where its folders are, and
// what its files are called.
type hierarchy struct {
	mount, limit, used, cache string
}

var (
	cgroup1 = hierarchy{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	cgroup2 = hierarchy{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"}
)

// cgroupLeft returns what the memory limits of this process's control group
// and the groups around it leave, math.MaxInt64 without a limit. Batch systems
// set them, and end a job that goes beyond; a tmpfs counts. Clusters with
// control groups of version 1 are still about.
func (h host) cgroupLeft() int64 {
	left := int64(math.MaxInt64)
	data, err := os.ReadFile(filepath.Join(h.root, "proc/self/cgroup"))
	if err != nil {
		return left
	}
	for line := range strings.Lines(string(data)) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case id == "0" && controllers == "":
			left = min(left, h.leftIn(cgroup2, group))
		case strings.Contains(","+controllers+",", ",memory,"):
			left = min(left, h.leftIn(cgroup1, group))
		}
	}
	return left
}

// leftIn walks from a group up to the root. In a container the path may be one
// of the host, of which only the root is to be seen.
func (h host) leftIn(v hierarchy, group string) int64 {
	left := int64(math.MaxInt64)
	for group = filepath.Clean("/" + group); ; group = filepath.Dir(group) {
		dir := filepath.Join(h.root, v.mount, group)
		limit, err1 := readInt(filepath.Join(dir, v.limit))
		used, err2 := readInt(filepath.Join(dir, v.used))
		if err1 == nil && err2 == nil {
			// Pages of files that nobody reads are given up first.
			used -= statOf(filepath.Join(dir, "memory.stat"), v.cache)
			left = min(left, max(0, limit-max(0, used)))
		}
		if group == "/" {
			return left
		}
	}
}

// readInt reads a file that holds a number; "max" is not one.
func readInt(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// statOf returns one number of a file of names and numbers, 0 if it is not
// there.
func statOf(file, name string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// DatasetID returns the name of the folder that a source has in every tier, by
// the Name of the source: the end of its path, for people, and a hash of all of
// it. Of a path it is the real one.
func DatasetID(source string) string {
	if !isURL(source) {
		if abs, err := filepath.Abs(source); err == nil {
			source = abs
		}
		source = realPath(source)
	}
	sum := sha256.Sum256([]byte(source))
	return safeName(lastElement(source)) + "-" + hex.EncodeToString(sum[:])[:12]
}

// lastElement is the end of a path, or of a URL without its query.
func lastElement(source string) string {
	if isURL(source) {
		source, _, _ = strings.Cut(source, "?")
	}
	return filepath.Base(source)
}

// safeName makes a name that is plain in a shell, in a URL and on any disk.
func safeName(name string) string {
	b := []byte(strings.ToLower(name))
	for i, c := range b {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.') {
			b[i] = '-'
		}
	}
	name = string(b[:min(len(b), 40)])
	if name = strings.Trim(name, ".-"); name == "" {
		return "dataset"
	}
	return name
}
