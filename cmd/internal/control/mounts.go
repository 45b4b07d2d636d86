package control

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/fs"
)

// A Mount is a mount of Milkweed in the kernel's mount table, whose daemon may have died, or a file
// system in another mount namespace that a daemon of this user serves under a name.
type Mount struct {
	Point  string // the mount point, absolute and without symbolic links
	Source string // the source, as in the mount table
	UID    int    // the user who mounted it
	GID    int    // the group of that user then
	Dev    uint64 // device number of the file system; 0: it is in another mount namespace
	Part   string // what of the file system is mounted there by itself, as by mount --bind; "": all
}

// Whole returns the path of what is mounted at m in a mount of the whole file system, or "" if none of all is one.
func (m Mount) Whole(all []Mount) string {
	i := slices.IndexFunc(all, func(o Mount) bool { return o.Dev == m.Dev && o.Part == "" })
	if i < 0 {
		return ""
	}
	return filepath.Join(all[i].Point, m.Part)
}

// Mounts lists the mounts of Milkweed in the mount namespace of this process, and then those in
// others that a daemon of this user serves under a name. It omits a mount that a later one on the same
// mount point hides.
func Mounts() ([]Mount, error) {
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return nil, err
	}
	all := reachable(table)
	for _, m := range named() {
		if !slices.ContainsFunc(all, func(o Mount) bool { return o.Point == m.Point }) {
			all = append(all, m)
		}
	}
	return all, nil
}

// namedTimeout bounds how long the daemons may take to tell their names.
const namedTimeout = 5 * time.Second

// named lists the file systems of ListenNamed.
func named() (all []Mount) {
	ctx, cancel := context.WithTimeout(context.Background(), namedTimeout)
	defer cancel()
	for _, c := range ownClients(ctx, namedSuffix) {
		if s, err := c.Status(ctx); err == nil { // otherwise it is about to end
			all = append(all, Mount{Point: s.MountPoint, Source: s.Source.Path, UID: os.Geteuid()})
		}
		c.Close()
	}
	return all
}

// Find returns the mount that path is in, and the name of path below the mount point in the
// form of drivers.ValidName. The path need not exist, and the daemon may be dead. If path is
// in no mount of Milkweed, the error is an *exit.Error with the code NotMounted. It matches ErrStarting
// if a daemon is to mount there, and has not yet.
func Find(path string) (Mount, string, error) {
	m, name, err := findMount(path)
	if exit.Of(err) != exit.NotMounted {
		return m, name, err
	}
	s, mounted := startingIn(path)
	switch {
	case s != nil:
		s.Close()
		return Mount{}, "", s.Err
	case mounted: // since findMount has looked
		return findMount(path)
	}
	return m, name, err
}

// findMount is Find for the mounts that are there.
func findMount(path string) (Mount, string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Mount{}, "", err
	}
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return Mount{}, "", err
	}
	// The mount point is found without a call to the mounted file system, which may hang. A path
	// below it may be a symbolic link; the mount of the link's target is the one that counts. If
	// links cannot be resolved, because the daemon is dead, its source hangs or the path does not
	// exist, the resolved parent and then the path as given are used.
	if m, name, ok := find(table, abs); ok && name == "." {
		return m, name, nil
	}
	for _, real := range append(resolve(abs), abs) {
		if m, name, ok := find(table, real); ok {
			return m, name, nil
		}
	}
	for _, m := range named() {
		if name, ok := paths.Rel(abs, m.Point); ok {
			return m, name, nil
		}
	}
	remedy := mountedRemedy(reachable(table))
	if m, _ := table.Of(abs); m.IsTrigger() {
		remedy = fmt.Sprintf("An automounter mounts on %s at the first access, such as `ls %s`.", m.Point, m.Point)
	}
	return Mount{}, "", &exit.Error{Code: exit.NotMounted, Err: fmt.Errorf("%s is not in a mount of Milkweed", path), Remedy: remedy}
}

// resolveTimeout bounds how long Find waits for the file systems that path is in.
const resolveTimeout = 2 * time.Second

// resolve returns path, which is absolute, with all symbolic links resolved, and with those of its
// parent resolved. It omits what fails, and both if a file system does not answer in time. Its
// goroutine then ends with the process.
func resolve(path string) []string {
	found := make(chan []string, 1)
	go func() {
		var resolved []string
		for _, f := range []func(string) (string, error){filepath.EvalSymlinks, Resolve} {
			if real, err := f(path); err == nil {
				resolved = append(resolved, real)
			}
		}
		found <- resolved
	}()
	select {
	case resolved := <-found:
		return resolved
	case <-time.After(resolveTimeout):
		return nil
	}
}

// Resolve returns path as an absolute path without symbolic links. It does not call a file
// system that is mounted at path, because that may hang: readlink(2) of a mount point causes
// no request to the file system.
func Resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range 40 { // the kernel follows as many links
		parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", err
		}
		abs = filepath.Join(parent, filepath.Base(abs))
		target, err := os.Readlink(abs)
		if err != nil {
			return abs, nil // not a link, or it does not exist
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(parent, target)
		}
		abs = target
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}

// mountedRemedy is the remedy for a path in no mount: it lists the mounts.
func mountedRemedy(all []Mount) string {
	if len(all) == 0 {
		return "Nothing is mounted. `milkweed mount SOURCE MOUNTPOINT` mounts a dataset."
	}
	points := make([]string, len(all))
	for i, m := range all {
		points[i] = m.Point
	}
	return "Mounted are: " + strings.Join(points, ", ") + "."
}

// find returns the mount of Milkweed that path, which is absolute, is in, and the name of path
// below the mount point.
func find(table mounts.Table, path string) (Mount, string, bool) {
	m, _ := table.Of(path)
	if m.Type != fs.Type {
		return Mount{}, "", false
	}
	name, _ := paths.Rel(path, m.Point)
	return Mount{m.Point, m.Source, idOf("user_id=", m.Options), idOf("group_id=", m.Options), m.Dev, strings.TrimPrefix(m.Root, "/")}, name, true
}

// reachable lists the mounts of Milkweed that no later mount hides.
func reachable(table mounts.Table) []Mount {
	var all []Mount
	for _, each := range table {
		if m, name, ok := find(table, each.Point); ok && name == "." && !slices.Contains(all, m) {
			all = append(all, m)
		}
	}
	return all
}

// idOf returns the number after key in the options of a FUSE mount.
func idOf(key, options string) int {
	for o := range strings.SplitSeq(options, ",") {
		if v, ok := strings.CutPrefix(o, key); ok {
			id, _ := strconv.Atoi(v)
			return id
		}
	}
	return 0
}
