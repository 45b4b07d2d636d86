package check

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// SourceError returns the error of a source that cannot be opened, for err.
func SourceError(c config.Source, err error) error {
	code, remedy := exit.Source, "Check that the source is mounted and readable."
	if c.URL != "" {
		code, remedy = ofBucket(err)
	}
	return &exit.Error{Code: code, Err: fmt.Errorf("source: %w", err), Remedy: remedy}
}

// Bucket tells what came of opening the source of c, which has a URL: how its
// requests are signed, or err.
func Bucket(c config.Source, signing string, err error) []Finding {
	const name = "source"
	if err != nil {
		code, remedy := ofBucket(err)
		return problem(code, name, remedy, "%w", err)
	}
	return ok(name, "%s can be listed; credentials: %s", c.Name(), signing)
}

// ofBucket returns what the error of a bucket means to a command, and what to do
// about it.
func ofBucket(err error) (exit.Code, string) {
	for _, r := range bucketRemedies {
		if errors.Is(err, r.err) {
			return r.code, r.remedy
		}
	}
	return exit.Source, "See whether the vendor's own tools can list it from here."
}

const unreachable = "Check the endpoint and the region, and whether this machine reaches them; HTTPS_PROXY names a proxy."

var bucketRemedies = []struct {
	err    error
	code   exit.Code
	remedy string
}{
	{syscall.EINVAL, exit.Usage, "The URL, or the environment of this command, has to say what is missing. `milkweed mount --help` lists the options of a URL."},
	{fs.ErrPermission, exit.Source, "Credentials that may list it must be where the vendor's own tools look for them; a public bucket needs none, with anonymous=true in its URL."},
	{fs.ErrNotExist, exit.Source, "Check the names of the bucket and of the prefix, and the endpoint if there is one."},
	{syscall.ENXIO, exit.Source, "Add region=REGION, that of the bucket, to the URL."},
	{syscall.EPROTO, exit.Source, "Check whether the endpoint begins with http:// or https://, and whether this machine trusts its certificate; SSL_CERT_FILE names those that it trusts."},
	{syscall.EHOSTUNREACH, exit.Source, unreachable},
	{syscall.ENETUNREACH, exit.Source, unreachable},
	{syscall.ECONNREFUSED, exit.Source, unreachable},
	{syscall.ETIMEDOUT, exit.Source, unreachable},
}
