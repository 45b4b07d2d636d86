package control

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/fs"
)

// A Mount is a mount of Milkweed, as the kernel lists it. Its daemon may have
// died since.
type Mount struct {
	Point  string // the mount point, absolute and without symbolic links
	Source string // what it says that it is a mount of
	UID    int    // who mounted it
}

// Mounts lists the mounts of Milkweed that this process sees and can reach.
func Mounts() ([]Mount, error) {
	all, err := mountTable()
	if err != nil {
		return nil, err
	}
	return reachable(all), nil
}

// Find returns the mount that a path is in, with the path's name in the form
// of drivers.ValidName. The path need not exist, and the mount may be dead.
func Find(path string) (Mount, string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Mount{}, "", err
	}
	all, err := mountTable()
	if err != nil {
		return Mount{}, "", err
	}
	// The mount point itself is known without asking the mount anything. What
	// is below it may be a symbolic link: what that leads to holds the bytes.
	// Where the mount cannot be asked, the path says what it can by itself.
	if m, name, ok := find(all, abs); ok && name == "." {
		return m, name, nil
	}
	for _, resolve := range []func(string) (string, error){filepath.EvalSymlinks, Resolve, filepath.Abs} {
		real, err := resolve(abs)
		if err != nil {
			continue
		}
		if m, name, ok := find(all, real); ok {
			return m, name, nil
		}
	}
	return Mount{}, "", &exit.Error{
		Code:   exit.NotMounted,
		Err:    fmt.Errorf("%s is not in a mount of Milkweed", path),
		Remedy: mountedRemedy(reachable(all)),
	}
}

// Resolve returns the mount point that a path names: absolute, and without
// symbolic links. It asks a file system that is mounted there nothing, since
// that may be dead: of its root only the kernel is asked.
func Resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range 40 { // as many links as the kernel follows
		parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", err
		}
		abs = filepath.Join(parent, filepath.Base(abs))
		target, err := os.Readlink(abs)
		if err != nil {
			return abs, nil // not a link, or not there
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(parent, target)
		}
		abs = target
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}

// mountedRemedy says where one could look instead.
func mountedRemedy(mounts []Mount) string {
	if len(mounts) == 0 {
		return "Nothing is mounted. `milkweed mount SOURCE MOUNTPOINT` mounts a dataset."
	}
	points := make([]string, len(mounts))
	for i, m := range mounts {
		points[i] = m.Point
	}
	return "Mounted are: " + strings.Join(points, ", ") + "."
}

// A mountEntry is one line of mountinfo.
type mountEntry struct {
	Mount
	fsType string
}

// find returns the mount that path, which is absolute, lies in.
func find(all []mountEntry, path string) (Mount, string, bool) {
	var best mountEntry
	for _, e := range all {
		// Of several mounts on one point the last hides the others.
		if _, ok := below(path, e.Point); ok && len(e.Point) >= len(best.Point) {
			best = e
		}
	}
	if best.fsType != fs.Type {
		return Mount{}, "", false
	}
	name, _ := below(path, best.Point)
	return best.Mount, name, true
}

// below returns the name of path below dir.
func below(path, dir string) (name string, ok bool) {
	if path == dir {
		return ".", true
	}
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// reachable keeps the mounts of Milkweed that no later mount hides.
func reachable(all []mountEntry) []Mount {
	var mounts []Mount
	for _, e := range all {
		if e.fsType != fs.Type {
			continue
		}
		if m, name, ok := find(all, e.Point); ok && name == "." && !slices.Contains(mounts, m) {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

func mountTable() ([]mountEntry, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads the format of proc_pid_mountinfo(5).
func parseMounts(r io.Reader) ([]mountEntry, error) {
	infos, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, err
	}
	all := make([]mountEntry, len(infos))
	for i, m := range infos {
		all[i] = mountEntry{Mount{m.Mountpoint, m.Source, userID(m.VFSOptions)}, m.FSType}
	}
	return all, nil
}

// userID returns the user_id of the options of a FUSE mount.
func userID(options string) int {
	for o := range strings.SplitSeq(options, ",") {
		if v, ok := strings.CutPrefix(o, "user_id="); ok {
			id, _ := strconv.Atoi(v)
			return id
		}
	}
	return 0
}
