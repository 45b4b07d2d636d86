package blob

import (
	"errors"
	"fmt"
	"net/http"
	"syscall"
)

// A listing ends when a page has no token for the next one. This file detects stores that send
// tokens without end. trace.check detects most of them, within one call of Bucket.listPage, which
// sends requests until it has as many keys as were requested.

// maxPages is the number of requests for pageSize keys. A page may have few keys, or none, such as
// the one before a partition without keys.
const maxPages = 2 * pageSize

// Errors of a listing without end.
var (
	errSameToken = errors.New("the store has sent a continuation token twice")
	errManyPages = fmt.Errorf("the store has sent %d pages with fewer than %d keys together", maxPages, pageSize)
)

// isEndless reports whether err is that of a listing without end, and returns its reason.
func isEndless(err error) (reason error, endless bool) {
	for _, reason := range []error{errSameToken, errManyPages} {
		if errors.Is(err, reason) {
			return reason, true
		}
	}
	return nil, false
}

// A tokenCheck detects that tokens repeat. It compares each token with one earlier token, at growing
// distances (Brent's algorithm), so that it finds a cycle of any length.
type tokenCheck struct {
	earlier string
	n, next int // tokens since earlier; the number of them after which earlier is replaced
}

// add returns errSameToken if token is the earlier one.
func (c *tokenCheck) add(token string) error {
	if token != "" && token == c.earlier {
		return errSameToken
	}
	if c.n++; c.n > c.next {
		c.earlier, c.n, c.next = token, 0, 2*c.next+1
	}
	return nil
}

// check returns an error if r is a request of a listing without end.
func (t *trace) check(r *http.Request) error {
	if t.kind != list {
		return nil
	}
	if t.requests++; t.requests > maxPages {
		return errManyPages
	}
	q := r.URL.Query()
	for _, parameter := range []string{"continuation-token", "pageToken", "marker"} { // S3, Google, Azure
		if token := q.Get(parameter); token != "" {
			return t.tokens.add(token)
		}
	}
	return nil
}

// endless returns the error for a listing without end of the keys that begin with prefix.
func (b *Bucket) endless(prefix string, reason error) error {
	return &storeError{errno: syscall.EIO, text: fmt.Sprintf("%s: the listing of the keys that begin with %q has no end: %v", b.location, prefix, reason)}
}
