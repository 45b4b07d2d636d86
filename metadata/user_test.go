package metadata

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// acl returns an ACL of entries with a tag, permissions and an ID.
func acl(entries ...[3]uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

// The rights of a user are those of the kernel. (cmd/milkweed.TestGuestSees compares them.)
func TestRightsOfUser(t *testing.T) {
	const owner, none = 0x01, 0xFFFFFFFF
	named := acl([3]uint32{owner, 6, none}, [3]uint32{aclUser, 4, 77}, [3]uint32{aclUser, 0, 78}, [3]uint32{aclGroupObj, 0, none},
		[3]uint32{aclGroup, 4, 88}, [3]uint32{aclGroup, 0, 89}, [3]uint32{aclMask, 4, none}, [3]uint32{aclOther, 4, none})
	masked := acl([3]uint32{owner, 6, none}, [3]uint32{aclUser, 4, 77}, [3]uint32{aclGroupObj, 4, none}, [3]uint32{aclMask, 1, none}, [3]uint32{aclOther, 4, none})
	for _, c := range []struct {
		name   string
		mode   uint32
		acl    []byte
		user   uint32
		groups []uint32
		want   bool
	}{
		{"owner", 0o400, nil, 10, nil, true},
		{"owner without rights", 0o044, nil, 10, []uint32{20}, false},
		{"group", 0o040, nil, 77, []uint32{1, 20}, true},
		{"group without rights", 0o404, nil, 77, []uint32{20}, false},
		{"other", 0o004, nil, 77, []uint32{1}, true},
		{"other without rights", 0o440, nil, 77, []uint32{1}, false},
		{"named user", 0o644, named, 77, nil, true},
		{"named user without rights", 0o644, named, 78, []uint32{88}, false},
		{"one of the groups", 0o644, named, 79, []uint32{89, 88}, true},
		{"a group without rights", 0o644, named, 79, []uint32{89}, false},
		{"the group without rights", 0o644, named, 79, []uint32{20}, false},
		{"no group of the ACL", 0o644, named, 79, []uint32{90}, true},
		{"masked user", 0o614, masked, 77, nil, false},
		{"masked group", 0o614, masked, 79, []uint32{20}, false},
		{"other than masked", 0o614, masked, 79, nil, true},
		{"ACL without a mask in the mode", 0o604, named, 78, nil, true},
		{"owner with an ACL", 0o444, masked, 10, nil, true},
		{"damaged ACL", 0o644, named[:15], 79, nil, false},
		{"ACL of another version", 0o644, append([]byte{3, 0, 0, 0}, named[4:]...), 79, nil, false},
	} {
		info := drivers.Info{Mode: syscall.S_IFREG | c.mode, UID: 10, GID: 20}
		if got := (User{c.user, c.groups}).has(0o4, info, c.acl); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// ResolveAs finds what a user may read, and requests no name in a directory that the user may not search.
func TestResolveAs(t *testing.T) {
	mem := drivertest.NewMem(0)
	for _, name := range []string{"f", "shut", "d/f", "closed/f", "listed/f", "acl/f"} {
		mem.Put(name, []byte("abc"))
	}
	mem.Symlink("f", "link")
	mem.Chmod("shut", 0o640)
	mem.Chmod("closed", 0o700)
	mem.Chmod("listed", 0o744)
	mem.Setxattr("acl", drivers.ACLXattr, acl([3]uint32{1, 7, 0}, [3]uint32{aclUser, 0, 77}, [3]uint32{aclGroupObj, 5, 0}, [3]uint32{aclMask, 5, 0}, [3]uint32{aclOther, 5, 0}))
	faults := drivertest.NewFaults(mem)
	w := worldOf(t, faults, time.Hour)
	u := User{UID: 77, Groups: []uint32{77}}
	for name, want := range map[string]error{
		".": nil, "f": nil, "d": nil, "d/f": nil, "link": nil, "missing": fs.ErrNotExist, "d/missing": fs.ErrNotExist,
		"shut": fs.ErrPermission, "closed": fs.ErrPermission, "closed/f": fs.ErrPermission, "closed/missing": fs.ErrPermission,
		"listed": nil, "listed/f": fs.ErrPermission, "listed/missing": fs.ErrPermission, "acl": fs.ErrPermission, "acl/f": fs.ErrPermission,
	} {
		if _, err := w.ResolveAs(bg, u, name); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
		if _, err := w.ResolveAs(bg, User{UID: 78}, name); name == "acl/f" && err != nil {
			t.Errorf("%s, another user: %v", name, err)
		}
	}
	for _, dir := range []string{"closed", "listed"} {
		if w.CachedCopy(w.CopyName(dir+"/f")) != nil {
			t.Errorf("a name in %s was requested", dir)
		}
	}
}

// The directory with the generations is in the path of the others, and not in that of the current one.
func TestResolveAsInGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGenerations(t)
		chmod := func(mode uint32) {
			w.source.Chmod(".", mode)
			time.Sleep(2 * time.Hour) // the attributes are requested again
		}
		chmod(0o700)
		w.source.Chmod("v3", 0o700)
		u := User{UID: 77}
		for name, want := range map[string]error{
			w.Inside("g"): nil, w.Inside("."): nil, w.Inside(".generations/v1/g"): nil,
			w.Inside(".generations/v2/d/f"): fs.ErrPermission, w.Inside(".generations"): fs.ErrPermission,
		} {
			if _, err := w.ResolveAs(bg, u, name); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		chmod(0o755)
		for name, want := range map[string]error{".generations/v2/d/f": nil, ".generations/v3/d/f": fs.ErrPermission, ".generations": nil} {
			if _, err := w.ResolveAs(bg, u, w.Inside(name)); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		if err := w.useGeneration(bg, "v3"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ResolveAs(bg, u, w.Inside(".generations/v2/d/f")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("through a generation that is closed: %v", err)
		}
	})
}

// Without a TTL, the attributes are those of now.
func TestResolveAsWithoutTTL(t *testing.T) {
	w := newWorld(t, 0)
	w.source.Put("f", []byte("abc"))
	for _, c := range []struct {
		mode uint32
		want error
	}{{0o755, nil}, {0o750, fs.ErrPermission}, {0o755, nil}} {
		w.source.Chmod(".", c.mode)
		if _, err := w.ResolveAs(bg, User{UID: 77}, "f"); !errors.Is(err, c.want) {
			t.Errorf("mode %o: %v", c.mode, err)
		}
	}
}
