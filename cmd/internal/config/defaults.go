package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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
	minTierSize = 64 * mib // a smaller tier is not worth its overhead
	diskPercent = 50
)

// DefaultTiers returns the tiers of a mount whose command line has only SOURCE and
// MOUNTPOINT. Source is the Name of the source.
//
// The tier "ram" is a folder in /dev/shm. If another user has taken its name, the folder has
// another one, with a number. Its quota is the smallest of half of the
// free space of that tmpfs, a quarter of the available memory, and a quarter of the
// memory that the limits of the control group leave. The copies of earlier mounts
// of the same source count as free space, so that a restart does not reduce the
// quota. They are counted for at most a tenth of a second, because a mount must be
// ready at once.
//
// The tier "disk" is a folder in $XDG_CACHE_HOME (by default ~/.cache), or, if that is on a remote file
// system, in $TMPDIR (by default /var/tmp). Its quota is half of the free space of its file system plus
// the space of its copies.
//
// A tier with less than 64 MiB is omitted. It is an error if no tier remains. The notes say why a tier
// is not where a user expects it, a sentence each.
func DefaultTiers(source string) (tiers []Tier, notes []string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = "" // no home directory, so no disk tier
	}
	h := host{
		root:  "/",
		shm:   shm,
		cache: cache,
		tmp:   cmp.Or(os.Getenv("TMPDIR"), "/var/tmp"),
		stat:  statfs,
		uid:   os.Getuid(),
	}
	return h.defaultTiers(source)
}

// shm is the tmpfs of every Linux.
const shm = "/dev/shm"

// A host is the machine that DefaultTiers examines. Tests replace its parts.
type host struct {
	root  string // the directory that contains /proc and /sys
	shm   string // the tmpfs
	cache string // the user's cache folder; "" if there is none
	tmp   string // where any user can make folders
	uid   int
	stat  func(path string) (available int64, kind FileSystem, err error)
}

func (h host) defaultTiers(source string) (tiers []Tier, notes []string, err error) {
	id := DatasetID(source)
	if t, ok := h.ramTier(id); ok {
		tiers = append(tiers, t)
		if usual := h.ramFolder(); t.Path != usual {
			notes = append(notes, fmt.Sprintf("%s is used, because another user took %s", t.Path, usual))
		}
	}
	t, note, ok := h.diskTier(id)
	if ok {
		tiers = append(tiers, t)
	}
	if note != "" {
		notes = append(notes, note)
	}
	if len(tiers) == 0 {
		return nil, nil, &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("no space for copies: neither %s nor the cache folder (%s) has 64 MiB", h.shm, h.cache),
			Remedy: "Write a tiering.toml with a [[tier]] on a file system with free space, and pass it with -c.",
		}
	}
	return tiers, notes, nil
}

// StateFolder returns the user's folder for logs and other state: milkweed in $XDG_STATE_HOME, by
// default ~/.local/state, or for root without a home directory /var/lib. It is "" if there is none.
func StateFolder() string {
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		switch {
		case err == nil:
			state = filepath.Join(home, ".local", "state")
		case os.Getuid() == 0: // a service
			state = "/var/lib"
		default:
			return ""
		}
	}
	return filepath.Join(state, "milkweed")
}

// ramFolder returns the path of the tier "ram" unless another user has taken it.
func (h host) ramFolder() string { return filepath.Join(h.shm, "milkweed-"+strconv.Itoa(h.uid)) }

func (h host) ramTier(id string) (Tier, bool) {
	available, kind, err := h.stat(h.shm)
	if err != nil || kind != tmpfs {
		return Tier{}, false
	}
	memory, err := h.memAvailable()
	if err != nil {
		return Tier{}, false
	}
	dir, ok := h.ownFolder(h.ramFolder())
	if !ok {
		return Tier{}, false
	}
	copies := diskUsage(filepath.Join(dir, id), 100*time.Millisecond)
	quota := min((available+copies)/2, (memory+copies)/4)
	if left := h.cgroupAvailable(); left < math.MaxInt64-copies {
		quota = min(quota, (left+copies)/4)
	}
	quota -= quota % mib
	return Tier{Name: "ram", Path: dir, Quota: Quota{Bytes: quota}}, quota >= minTierSize
}

// maxFolders is the number of folders in /dev/shm of which one is used.
const maxFolders = 10

// ownFolder returns the folder to use of path, path-1, path-2 and so on: the first that belongs to
// the user, or else the first that does not exist. Any user can make a folder of these names.
func (h host) ownFolder(path string) (folder string, ok bool) {
	for i := range maxFolders {
		name := path
		if i > 0 {
			name += "-" + strconv.Itoa(i)
		}
		info, err := os.Lstat(name) // a symbolic link is not a folder
		switch {
		case err == nil && info.IsDir() && info.Sys().(*syscall.Stat_t).Uid == uint32(h.uid):
			return name, true
		case errors.Is(err, fs.ErrNotExist) && folder == "":
			folder = name
		}
	}
	return folder, folder != ""
}

// diskTier returns the tier "disk", and a note if it is not in the cache folder.
func (h host) diskTier(id string) (t Tier, note string, ok bool) {
	if h.cache == "" {
		return Tier{}, "", false
	}
	dir := filepath.Join(h.cache, "milkweed")
	available, kind, err := h.stat(nearestExisting(dir))
	if err == nil && kind.Remote {
		none := func(why string) (Tier, string, bool) {
			return Tier{}, fmt.Sprintf("no disk holds copies, because %s is on %s, and %s", h.cache, kind.Name, why), false
		}
		if dir, ok = h.ownFolder(filepath.Join(h.tmp, "milkweed-"+strconv.Itoa(h.uid))); !ok {
			return none("other users have taken the names in " + h.tmp)
		}
		var local FileSystem
		if available, local, err = h.stat(nearestExisting(dir)); err != nil || local.Remote || local == tmpfs {
			return none(h.tmp + " is no disk of this machine")
		}
		note = fmt.Sprintf("%s is used, because %s is on %s", dir, h.cache, kind.Name)
	}
	t = Tier{Name: "disk", Path: dir, Quota: Quota{Percent: diskPercent}}
	if _, err := os.Stat(filepath.Join(dir, id)); err == nil {
		return t, note, true // it stores copies already, so the free space does not matter
	}
	return t, note, err == nil && t.Quota.Of(available) >= minTierSize
}

// nearestExisting returns path if it exists, and otherwise its nearest parent that
// does.
func nearestExisting(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

func statfs(path string) (available int64, kind FileSystem, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, FileSystem{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, FileSystemOf(int64(st.Type)), nil
}

// diskUsage returns the space that the files below dir occupy. After limit it stops
// and returns the sum so far.
func diskUsage(dir string, limit time.Duration) int64 {
	var total int64
	deadline := time.Now().Add(limit)
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if time.Now().After(deadline) {
			return fs.SkipAll
		}
		if err != nil {
			return nil // a file that cannot be read is not counted
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return total
}

// memAvailable returns the memory in bytes that is available without swapping.
func (h host) memAvailable() (int64, error) {
	const name = "MemAvailable:"
	file := filepath.Join(h.root, "proc/meminfo")
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 54) // in KiB; 54 bits, so that bytes fit into 64
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("%s: no %s", file, name)
}

// A cgroupVersion is the layout of one version of control groups: the names of two files about memory, and a
// field of memory.stat.
type cgroupVersion struct {
	limit, used, cache string
}

var (
	cgroup1 = cgroupVersion{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	cgroup2 = cgroupVersion{"memory.max", "memory.current", "inactive_file"}
)

// cgroupAvailable returns the memory in bytes that this process may still use
// under the limits of its control group and the parents of that group. Without a
// limit it returns math.MaxInt64. Batch systems set such limits and kill a job that
// exceeds them, and the content of a tmpfs counts. Clusters with version 1 of
// control groups still exist.
func (h host) cgroupAvailable() int64 { return h.availableTo("self") }

// availableTo is cgroupAvailable for a process.
func (h host) availableTo(process string) int64 {
	left := int64(math.MaxInt64)
	h.eachGroup(process, "memory", func(v cgroupVersion, dir string) {
		limit, err1 := readInt(filepath.Join(dir, v.limit))
		used, err2 := readInt(filepath.Join(dir, v.used))
		if err1 == nil && err2 == nil {
			// The kernel reclaims inactive pages of the page cache first.
			used -= readStat(filepath.Join(dir, "memory.stat"), v.cache)
			left = min(left, max(0, limit-max(0, used)))
		}
	})
	return left
}

// MemoryLimit returns the memory in bytes that the control group of this process and its parents
// permit. Without a limit it returns math.MaxInt64.
func MemoryLimit() int64 { return host{root: "/"}.memoryLimit("self") }

// MemoryOf returns the memory in bytes that the control group of another process and its parents
// permit, and how much of that is left. Without a limit both are math.MaxInt64.
func MemoryOf(pid int) (limit, left int64) {
	h, process := host{root: "/"}, strconv.Itoa(pid)
	return h.memoryLimit(process), h.availableTo(process)
}

// SmallMemory is the memory limit in bytes below which a mount saves memory at the cost of speed: the
// kernel reads little at a time, and few workers copy.
const SmallMemory = 1 << 30

func (h host) memoryLimit(process string) int64 {
	lowest := int64(math.MaxInt64)
	h.eachGroup(process, "memory", func(v cgroupVersion, dir string) {
		if limit, err := readInt(filepath.Join(dir, v.limit)); err == nil && limit < 1<<60 { // without a limit, version 1 has a large number
			lowest = min(lowest, limit)
		}
	})
	return lowest
}

// cgroups is the folder of the control groups. In version 1, each controller has a hierarchy of its own there.
const cgroups = "sys/fs/cgroup"

// eachGroup calls f with the folder of each control group by which a controller limits a process, which is a
// number or "self".
func (h host) eachGroup(process, controller string, f func(v cgroupVersion, dir string)) {
	data, err := os.ReadFile(filepath.Join(h.root, "proc", process, "cgroup"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case id == "0" && controllers == "":
			h.eachParent(h.unified(), group, func(dir string) { f(cgroup2, dir) })
		case strings.Contains(","+controllers+",", ","+controller+","):
			h.eachParent(filepath.Join(cgroups, controller), group, func(dir string) { f(cgroup1, dir) })
		}
	}
}

// unified returns the folder of the hierarchy of version 2, which may be beside those of version 1.
func (h host) unified() string {
	const beside = cgroups + "/unified"
	_, alone := os.Stat(filepath.Join(h.root, cgroups, "cgroup.controllers"))
	if _, err := os.Stat(filepath.Join(h.root, beside)); err == nil && alone != nil {
		return beside
	}
	return cgroups
}

// eachParent calls f with the folders of a group and its parents in a hierarchy. In a container the path of the
// group may be a path of the host, and then only the root of the hierarchy is visible.
func (h host) eachParent(hierarchy, group string, f func(dir string)) {
	for group = filepath.Clean("/" + group); ; group = filepath.Dir(group) {
		f(filepath.Join(h.root, hierarchy, group))
		if group == "/" {
			return
		}
	}
}

// readInt reads a file that consists of a number. The word "max" is an error.
func readInt(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// readStat returns the number after name in a file of lines with a name and a
// number, or 0 if there is none.
func readStat(file, name string) int64 {
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

// DatasetID returns the name of the folder of a source in every tier. Source is the
// Name of the source. The result is the last element of the path, for readability,
// and a hash of the whole path with symbolic links resolved, except for a link that is
// its last element, or of the whole URL.
func DatasetID(source string) string {
	if !IsURL(source) {
		if abs, err := filepath.Abs(source); err == nil {
			source = abs
		}
		if info, err := os.Lstat(source); err == nil && info.Mode()&os.ModeSymlink != 0 {
			source = filepath.Join(RealPath(filepath.Dir(source)), filepath.Base(source))
		} else {
			source = RealPath(source)
		}
	}
	sum := sha256.Sum256([]byte(source))
	return safeName(lastElement(source)) + "-" + hex.EncodeToString(sum[:])[:12]
}

// lastElement returns the last element of a path, or of a URL without its query.
func lastElement(source string) string {
	if IsURL(source) {
		source, _, _ = strings.Cut(source, "?")
	}
	return filepath.Base(source)
}

// safeName converts name to one that needs no escape in a shell, in a URL or in any
// file system. The result has at most 40 bytes.
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
