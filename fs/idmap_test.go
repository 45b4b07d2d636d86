package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

// A mount that other users may read can be idmapped, in each mode: files belong to the users of the namespace, who may
// read what these users may.
func TestIDMappedMount(t *testing.T) {
	drivertest.Need(t, "root", "setpriv")
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			s := newStack(t, stackOptions{mode: mode, allow: true, quotas: []tiers.Quota{bytesQuota(1 << 20)}}, func(dir string) {
				for name, uid := range map[string]int{"own": 1000, "other": 1001} {
					path := filepath.Join(dir, name)
					if err := errors.Join(os.WriteFile(path, bytes.Repeat([]byte(name), 1000), 0o600), os.Chown(path, uid, uid)); err != nil {
						t.Fatal(err)
					}
				}
			})
			s.check(os.Chmod(filepath.Dir(s.dir), 0o755)) // the directory of t.TempDir
			const first = 300_000
			point, err := drivertest.MountMapped(t, s.point, first)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // from the source, and from a copy
				for _, tt := range []struct {
					point string
					uid   int
				}{{point, first + 1000}, {s.point, 1000}} {
					info, err := os.Stat(tt.point + "/own")
					if err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != tt.uid {
						t.Fatalf("%+v, %v", info, err)
					}
					read := func(name string) (string, error) {
						out, err := exec.Command("setpriv", fmt.Sprint("--reuid=", tt.uid), fmt.Sprint("--regid=", tt.uid), "--clear-groups", "cat", tt.point+"/"+name).Output()
						return string(out), err
					}
					if got, err := read("own"); err != nil || got != string(bytes.Repeat([]byte("own"), 1000)) {
						t.Errorf("read %d bytes, error %v", len(got), err)
					}
					if got, err := read("other"); err == nil {
						t.Errorf("read %d bytes of another user's file", len(got))
					}
				}
				s.settled()
			}
		})
	}
}
