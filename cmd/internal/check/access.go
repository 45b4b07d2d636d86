package check

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
)

// access checks, for allow_other, whether the kernel can apply the access rules of the source: the
// permission bits and POSIX ACLs.
func (h host) access(ctx context.Context, c *config.Config) []Finding {
	if !c.Mount.AllowOther || c.Source.Path == "" {
		return nil
	}
	const name = "access"
	onTimeout := problem(exit.Source, name, "See the finding of the source.", "%s did not respond within %s", c.Source.Path, h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding {
		rule := h.otherRule(c.Source.Path)
		switch {
		case rule != "" && c.Mount.ForceAllowOther:
			return warning(name, "Remove force_allow_other, unless all users may read all of the source.",
				"%s, and allow_other is forced: other users may read what the source denies them", rule)
		case rule != "":
			return problem(exit.Fuse, name, "Mount without allow_other. If all users may read all of the source, set force_allow_other.",
				"allow_other is refused: %s", rule)
		case errors.Is(h.getxattr(c.Source.Path, drivers.ACLXattr), unix.ENOTSUP):
			return ok(name, "permission bits decide, because the source has no ACLs")
		}
		return ok(name, "permission bits and POSIX ACLs decide, as at the source")
	})
}

// otherRule describes a rule of the source that the kernel cannot apply, or is "".
func (h host) otherRule(source string) string {
	for _, attr := range []string{"system.nfs4_acl", "system.nfs4_acl_xdr", "system.richacl"} {
		if h.getxattr(source, attr) == nil {
			return "the source has NFSv4 ACLs (" + attr + "), which Milkweed does not apply"
		}
	}
	if path := h.deniedToRoot(source); path != "" {
		return "the source denies root to read " + path + ", as NFS does with root_squash"
	}
	return ""
}

// deniedToRoot returns a file or directory in source that root may not read, or "". A file system
// of this machine denies root nothing. It examines up to 64 names: if all of them are readable for
// root, other users gain nothing from the mount that the daemon could not check.
func (h host) deniedToRoot(source string) string {
	if h.uid != 0 {
		return ""
	}
	f, err := os.Open(source)
	if err != nil { // the check of the source reports it
		return ""
	}
	defer f.Close()
	names, _ := f.Readdirnames(64) // as above
	for _, name := range names {
		path := filepath.Join(source, name)
		info, err := os.Lstat(path)
		if err == nil && (info.IsDir() || info.Mode().IsRegular()) && errors.Is(h.mayRead(path), unix.EACCES) {
			return path
		}
	}
	return ""
}

func getxattr(path, attr string) error {
	_, err := unix.Getxattr(path, attr, nil)
	return err
}
