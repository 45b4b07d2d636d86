package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// nobody is the user ID of a user without privileges.
const nobody = 65534

var longName = strings.Repeat("n", 255)

// A file is a regular file of the tree.
type file struct {
	name  string
	mode  uint32
	owner int
	size  int
}

var regularFiles = []file{
	{"regular", 0o644, 0, 300_000},
	{"empty", 0o644, 0, 0},
	{"executable", 0o755, 0, 0},
	{"setuid", 0o6755, 0, 10},
	{"private", 0o600, 0, 10},
	{"owned", 0o600, nobody, 5000},
	{"unreadable", 0o000, nobody, 10},
	{"writable", 0o666, 0, 10},
	{"group", 0o060, 0, 10},
	{"first", 0o644, 0, 10},
	{"acl", 0o640, 0, 10},
	{longName, 0o644, 0, 10},
	{"dir/file", 0o644, 0, 8192},
	{"dir/sub/file", 0o644, 0, 10},
	{"unsearchable/file", 0o644, 0, 10},
	{"unlisted/file", 0o644, 0, 10},
	{"closed/file", 0o644, 0, 10},
	{"owndir/file", 0o644, nobody, 10},
	{"sticky/file", 0o644, nobody, 10},
}

// makeTree makes the tree that targets has paths of.
func makeTree(root string) error {
	unix.Umask(0)
	all := []error{os.WriteFile(root+"/sparse", make([]byte, 4096), 0o644), os.Truncate(root+"/sparse", 1<<20)}
	do := func(err error) { all = append(all, err) }
	for _, f := range regularFiles {
		path := filepath.Join(root, f.name)
		content := bytes.Repeat([]byte(f.name+"\n"), f.size/(len(f.name)+1)+1)[:f.size]
		if f.name == "executable" {
			content = []byte("#!/bin/sh\n")
		}
		do(os.MkdirAll(filepath.Dir(path), 0o755))
		do(os.WriteFile(path, content, 0o600))
		do(os.Chown(path, f.owner, f.owner))
		do(unix.Chmod(path, f.mode))
	}
	do(exec.Command("cp", "/bin/cat", root+"/program").Run())
	do(os.Link(root+"/first", root+"/second"))
	for link, target := range map[string]string{
		"link": "regular", "linkdir": "dir", "dangling": "nowhere", "loop": "loop", "dir/up": "../regular",
	} {
		do(os.Symlink(target, filepath.Join(root, link)))
	}
	do(unix.Mknod(root+"/fifo", unix.S_IFIFO|0o666, 0))
	do(unix.Mknod(root+"/socket", unix.S_IFSOCK|0o666, 0))
	do(unix.Mknod(root+"/char", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	do(unix.Mknod(root+"/block", unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))))
	do(unix.Setxattr(root+"/regular", "user.x", []byte("value"), 0))
	do(exec.Command("setfacl", "-m", "u:65534:r", root+"/acl").Run())
	do(os.Chown(root+"/owndir", nobody, nobody))
	for dir, mode := range map[string]uint32{"owndir": 0o700, "unsearchable": 0o744, "unlisted": 0o711, "closed": 0o700, "sticky": 0o1777} {
		do(unix.Chmod(filepath.Join(root, dir), mode))
	}
	// The last attributes are the times, of which each file has its own.
	day := time.Date(2020, 1, 1, 0, 0, 0, 123_456_789, time.UTC)
	do(filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		day = day.Add(25 * time.Hour)
		stamp := unix.NsecToTimespec(day.UnixNano())
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{stamp, stamp}, unix.AT_SYMLINK_NOFOLLOW)
	}))
	return errors.Join(all...)
}

// targets are paths of each kind, relative to the tree, and paths that fail. None leads out of the
// tree, where a call could succeed.
var targets = func() []string {
	list := []string{
		".", "", "program", "dir", "dir/", "dir/.", "dir/..", "dir/sub", "owndir", "unsearchable", "unlisted", "closed", "sticky",
		"sparse", "second", "regular/", "regular/.", "regular/name", "executable/../regular", "unsearchable/name", "unlisted/name",
		"owndir/name", "sticky/name", "link", "link/", "link/name", "linkdir", "linkdir/", "linkdir/file", "dir/up",
		"dangling", "dangling/", "dangling/name", "loop", "loop/", "loop/name", "fifo", "socket", "char", "block", "fifo/name",
		"missing", "missing/", "missing/name", "missing/../regular", "dir/missing", "dir/missing/",
		longName + "n", "dir/" + longName + "n", longName + "n/name", longName + "n/", longName + "/name", "missing/" + longName + "n",
		longest, tooLong,
	}
	for _, f := range regularFiles {
		list = append(list, f.name)
	}
	return list
}()

// These targets are the file regular, by a path that is as long as the kernel permits, and by one
// that is longer by a byte.
const (
	longest = "(4095 bytes)"
	tooLong = "(4096 bytes)"
)

// in returns the path of a target.
func (p *probe) in(target string) string {
	switch target {
	case "":
		return ""
	case longest:
		return p.long(unix.PathMax - 1)
	case tooLong:
		return p.long(unix.PathMax)
	}
	return p.root + "/" + target
}

func (p *probe) long(n int) string {
	fill := n - len(p.root) - len("/regular")
	return p.root + strings.Repeat("/", fill) + "/regular"
}

// short abbreviates a target for the output.
func short(target string) string {
	return strings.ReplaceAll(strings.ReplaceAll(target, longName+"n", "(256)"), longName, "(255)")
}
