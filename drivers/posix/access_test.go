package posix

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// What is known of the access of a user to a file or directory, by its attributes, is what the kernel
// decides: for all modes, owners and groups, and with ACLs. Without an ACL, everything is known.
func TestPermits(t *testing.T) {
	drivertest.Need(t, "root", "setfacl", "setpriv")
	const uid, member, stranger = 77, 88, 99
	u := user{uid: uid, groups: []uint32{uid, member}}
	dir, err := os.MkdirTemp("", "milkweed-access-") // the user may not enter t.TempDir()
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	check(t, os.Chmod(dir, 0o755))
	var names []string
	for _, acl := range []string{"", "u:77:r-x", "u:77:---", "g:88:r-x", "g:88:---", "u:77:r-x,m::---"} {
		for i := range 2 * 2 * 8 * 2 {
			owner, group := [2]int{uid, stranger}[i&1], [2]int{member, stranger}[i>>1&1]
			mode := fs.FileMode(i>>2&1*0o500 | i>>3&1*0o050 | i>>4&1*0o005)
			name := filepath.Join(dir, fmt.Sprintf("%v owner %d group %d acl %s folder %d", mode, owner, group, acl, i>>5))
			if i>>5 == 0 {
				check(t, os.WriteFile(name, nil, 0o600))
			} else {
				check(t, os.Mkdir(name, 0o700))
				check(t, os.WriteFile(name+"/f", nil, 0o644))
			}
			check(t, os.Chown(name, owner, group))
			check(t, os.Chmod(name, mode))
			if acl != "" {
				out, err := exec.Command("setfacl", "-m", acl, name).CombinedOutput()
				if err != nil {
					t.Fatalf("setfacl: %v: %s", err, out)
				}
			}
			names = append(names, name)
		}
	}

	child := exec.Command("setpriv", "--reuid=77", "--regid=77", "--groups=88", "--", "sh", "-c",
		`while IFS= read -r name; do case $name in *"folder 1") name=$name/f;; esac; if true <"$name"; then echo yes; else echo no; fi; done 2>/dev/null`)
	child.Stdin = strings.NewReader(strings.Join(names, "\n") + "\n")
	out, err := child.Output()
	check(t, err)
	answers := strings.Fields(string(out))
	if len(answers) != len(names) {
		t.Fatalf("%d answers for %d names", len(answers), len(names))
	}
	conclusive := 0
	for i, name := range names {
		var st unix.Stat_t
		check(t, unix.Stat(name, &st))
		noACL := strings.Contains(name, "acl  ")
		for _, assumed := range []bool{false, noACL} {
			permitted, known := u.permits(infoOf(name, &st), assumed)
			if known && permitted != (answers[i] == "yes") {
				t.Errorf("%s: permitted %v, but the kernel says %s", filepath.Base(name), permitted, answers[i])
			}
			if assumed && !known {
				t.Errorf("%s: not known", filepath.Base(name))
			}
			if known {
				conclusive++
			}
		}
	}
	if conclusive < len(names) {
		t.Errorf("%d decisions are known, of %d files", conclusive, len(names))
	}
}

// On a file system whose server decides, nothing is known from attributes.
func TestPermitsOfServers(t *testing.T) {
	d := &Dir{user: user{all: true}}
	d.root.Store(&root{fsType: "nfs"})
	if _, known := d.Permits(infoOf("f", new(unix.Stat_t)), true); known {
		t.Error("known on NFS")
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
