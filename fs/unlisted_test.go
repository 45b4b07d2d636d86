package fs

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
)

// newUnlistedRig mounts a source that ignores case, with d/IMG_1.JPG and d/.snapshot/daily/f. No listing shows
// .snapshot. d was listed.
func newUnlistedRig(t *testing.T) *tripRig {
	r := newTripRig(t, nil)
	r.source.IgnoreCase()
	r.source.Put("d/IMG_1.JPG", []byte("image"))
	r.source.Put("d/.snapshot/daily/f", []byte("file"))
	r.source.Hide("d/.snapshot", true)
	r.wantListing()
	r.requests()
	return r
}

func (r *tripRig) wantListing() {
	r.t.Helper()
	for _, ls := range []string{"ls -A", "ls -lA"} {
		if out, err := exec.Command("sh", "-c", ls+` "$1/d" | grep -v total | sed "s/.* //"`, "sh", r.point).Output(); err != nil || string(out) != "IMG_1.JPG\n" {
			r.t.Errorf("%s: %v, %s", ls, err, out)
		}
	}
}

// Programs read names that no listing shows, after the directory was listed. They are requested once, also those
// that are missing, and a program whose working directory is one of them stays there after the next listings.
func TestUnlistedNames(t *testing.T) {
	r := newUnlistedRig(t)
	stays := exec.Command("sh", "-c", `cd "$1/d/.snapshot/daily" && while read _; do cat f && echo; done`, "sh", r.point)
	in, err := stays.StdinPipe()
	r.check(err)
	out, err := stays.StdoutPipe()
	r.check(err)
	r.check(stays.Start())
	defer stays.Wait()
	defer in.Close()
	lines := bufio.NewReader(out)
	for i := range 3 {
		r.sh(`cat "$1/d/img_1.jpg" "$1/D/Img_1.jpg" "$1/d/.snapshot/daily/f" >/dev/null; ! cat "$1/d/none" 2>/dev/null`)
		if _, names := r.requests(); i == 0 && names > 9 || i > 0 && names > 4 {
			t.Errorf("round %d: %d requests for names", i, names)
		}
		r.wantListing()
		r.check(r.names.Revalidate(t.Context(), []string{"."}, func(f metadata.Finding) {
			if f.Change != metadata.Unchanged || f.Err != nil {
				t.Errorf("%+v", f)
			}
		}))
		fmt.Fprintln(in)
		if line, err := lines.ReadString('\n'); err != nil || line != "file\n" {
			t.Errorf("in the working directory: %q, %v", line, err)
		}
		r.requests()
	}
}

// Many lookups of missing names cost the source one request for each name, and one for the root.
func TestMissingNamesCostOneRequest(t *testing.T) {
	r := newUnlistedRig(t)
	r.sh(`cat "$1/d/img_1.jpg"`) // so that the listing may be outdated
	r.requests()
	for range 2 {
		r.sh(`for i in $(seq 100); do ! test -e "$1/d/none$i" || exit 1; done`)
	}
	if lists, names := r.requests(); lists != 0 || names > 101 {
		t.Errorf("%d listings and %d requests for names, want 0 and 101", lists, names)
	}
}

// While the source fails, a name that the listing lacks is missing, and the kernel does not cache that.
func TestUnconfirmedName(t *testing.T) {
	r := newUnlistedRig(t)
	r.faults.Add(drivertest.Rule{Err: syscall.EIO})
	cat := func() string {
		out, _ := exec.Command("cat", r.point+"/d/img_1.jpg").CombinedOutput()
		return string(out)
	}
	if got := cat(); !strings.Contains(got, "No such file") {
		t.Errorf("while the source fails: %s", got)
	}
	r.faults.Clear()
	if got := cat(); got != "image" {
		t.Errorf("afterwards: %s", got)
	}
}
