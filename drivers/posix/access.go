package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// A user is what the kernel knows of the user of this process when it decides on access.
type user struct {
	uid    uint32
	groups []uint32 // sorted
	all    bool     // a capability permits to read every file and to search every directory
	some   bool     // a capability does so for some files: those whose owner is in the user namespace
}

// currentUser returns the user of this process.
func currentUser() user {
	u := user{uid: uint32(os.Geteuid()), groups: []uint32{uint32(os.Getegid())}}
	more, _ := os.Getgroups() // without them, fewer decisions are known to be positive
	for _, g := range more {
		u.groups = append(u.groups, uint32(g))
	}
	slices.Sort(u.groups)
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	u.some = err != nil || caps[0].Effective&(1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_DAC_READ_SEARCH) != 0
	u.all = err == nil && u.some && HasAllUsers()
	return u
}

// HasAllUsers reports whether the user namespace of this process has all users. In another one, those that it does not
// have appear as one and the same.
func HasAllUsers() bool {
	ids, _ := os.ReadFile("/proc/self/uid_map")
	return slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
}

// permits reports whether the kernel lets u read a file, or search a directory, on a file system that it
// checks by itself, and whether that is known. (See acl(5), "Access check algorithm". The bits of the
// group are the mask of an ACL, if there is one.)
func (u user) permits(info drivers.Info, noACL bool) (permitted, known bool) {
	bit := uint32(unix.S_IROTH)
	if info.IsDir() {
		bit = unix.S_IXOTH
	}
	others, group, owner := info.Mode&bit != 0, info.Mode>>3&bit != 0, info.Mode>>6&bit != 0
	_, member := slices.BinarySearch(u.groups, info.GID)
	switch {
	case u.all:
		return true, true
	case u.some:
		return false, false
	case info.UID == u.uid:
		return owner, true
	case noACL && member, member && !group:
		return group, true
	case noACL, !group && !others:
		return others, true
	}
	return false, false // an entry of an ACL may decide
}

// checksAccess reports whether the kernel of this machine decides on access to files of a type of
// file system, by their attributes alone. For others a server decides.
func checksAccess(fsType string) bool { return isLocal(fsType) && fsType != "zfs" }

// Permits implements drivers.Permitter.
func (d *Dir) Permits(info drivers.Info, noACL bool) (permitted, known bool) {
	if !checksAccess(d.FSType()) {
		return false, false
	}
	return d.user.permits(info, noACL)
}

// User implements drivers.Permitter.
func (d *Dir) User() string { return fmt.Sprint(d.user) }

// Access implements drivers.Permitter. It opens the file: access(2) tells what the attributes say, which
// is not what every server decides.
func (d *Dir) Access(ctx context.Context, name string) error {
	o, err := d.Open(ctx, name)
	switch {
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return pathError("access", name, fs.ErrNotExist)
	case err != nil:
		return err
	}
	return o.Close()
}
