package check

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
)

// With allow_other, a source is refused if it has access rules that the kernel cannot apply, unless
// that is forced.
func TestAccessRules(t *testing.T) {
	// has returns a getxattr of a file system that knows some attributes.
	has := func(known ...string) func(path, attr string) error {
		return func(_, attr string) error {
			for _, k := range known {
				if k == attr {
					return nil
				}
			}
			return unix.ENOTSUP
		}
	}
	squashed := func(w *world) {
		w.uid = 0
		w.mayRead = func(path string) error {
			if filepath.Base(path) == "a" {
				return unix.EACCES
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name   string
		edit   func(w *world)
		status Status
		detail string // a part of it
	}{
		{"POSIX ACLs", func(w *world) { w.getxattr = has(drivers.ACLXattr) }, OK, "permission bits and POSIX ACLs decide"},
		{"no ACL on the root", func(w *world) { w.getxattr = func(string, string) error { return unix.ENODATA } }, OK, "permission bits and POSIX ACLs decide"},
		{"no ACLs", func(w *world) { w.getxattr = has() }, OK, "permission bits decide, because the source has no ACLs"},
		{"NFSv4", func(w *world) { w.getxattr = has("system.nfs4_acl") }, Problem, "allow_other is refused: the source has NFSv4 ACLs"},
		{"ZFS", func(w *world) { w.getxattr = has(drivers.ACLXattr, "system.nfs4_acl_xdr") }, Problem, "system.nfs4_acl_xdr"},
		{"root_squash", squashed, Problem, "the source denies root to read "},
		{"a user", func(w *world) { squashed(w); w.uid = 1000 }, OK, "decide"},
		{"forced", func(w *world) { squashed(w); w.config.Mount.ForceAllowOther = true }, Warning, "allow_other is forced"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			tt.edit(w)
			got := w.access(t.Context(), w.config)
			if len(got) != 1 || got[0].Status != tt.status || !strings.Contains(got[0].Detail, tt.detail) {
				t.Errorf("got %+v, want %s, %s", got, tt.status, tt.detail)
			}
			if tt.status == Problem && (got[0].Code != exit.Fuse || !strings.Contains(got[0].Remedy, "force_allow_other")) {
				t.Errorf("got %+v", got)
			}
		})
	}
}
