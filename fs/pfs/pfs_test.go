package pfs_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	milkweed "github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/pfs"
)

const files = 20

// mounted mounts a PFS with files d/e/00, d/e/01 and so on.
func mounted(t *testing.T, config pfs.Config) (p *pfs.PFS, point string) {
	t.Helper()
	drivertest.Need(t, "/dev/fuse")
	folder, point := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, "d/e"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := os.WriteFile(fmt.Sprintf("%s/d/e/%02d", folder, i), []byte("content"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := pfs.Mount(folder, point, "test", "pfs", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.Unmount() != nil { // another program may look at all mounts
			if err := milkweed.Unmount(context.Background(), point, true); err != nil {
				t.Errorf("unmount: %v", err)
				return
			}
		}
		p.Wait()
	})
	return p, point
}

// A client that revalidates names looks up each component of each path, and one that caches them
// looks up each name once. Both cause one OPEN and one READ for each file.
func TestUse(t *testing.T) {
	for _, test := range []struct {
		ttl  time.Duration
		want pfs.Use
	}{
		{0, pfs.Use{Operations: 5 * files, Lookups: 3 * files, Opens: files, Reads: files, Bytes: 7 * files}},
		{time.Hour, pfs.Use{Operations: 3*files + 2, Lookups: files + 2, Opens: files, Reads: files, Bytes: 7 * files}},
	} {
		t.Run(test.ttl.String(), func(t *testing.T) {
			p, point := mounted(t, pfs.Config{TTL: test.ttl})
			before := p.Use()
			script := `for i in $(seq -w 0 19); do read -r line < "$1/d/e/$i"; done; true`
			if out, err := exec.Command("bash", "-c", script, "bash", point).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got := p.Use().Sub(before); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// The attributes of the names in a listing are requested by a LOOKUP of each.
func TestListing(t *testing.T) {
	p, point := mounted(t, pfs.Config{TTL: time.Hour})
	before := p.Use()
	if out, err := exec.Command("ls", "-l", point+"/d/e").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, want := p.Use().Sub(before), (pfs.Use{Operations: files + 3, Lookups: files + 2, Lists: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Two programs that have a file open at the same time share the pages that the kernel caches. With
// Direct there are none, and each program reads the file from the PFS.
func TestDirect(t *testing.T) {
	for _, direct := range []bool{false, true} {
		p, point := mounted(t, pfs.Config{TTL: time.Hour, Direct: direct})
		script := `exec 3< "$1/d/e/00" 4< "$1/d/e/00"; cat <&3; cat <&4`
		if out, err := exec.Command("bash", "-c", script, "bash", point).CombinedOutput(); err != nil || string(out) != "contentcontent" {
			t.Fatalf("%v: %s", err, out)
		}
		want := int64(len("content"))
		if direct {
			want *= 2
		}
		if got := p.Use().Bytes; got != want {
			t.Errorf("direct %v: %d bytes were read, want %d", direct, got, want)
		}
	}
}
