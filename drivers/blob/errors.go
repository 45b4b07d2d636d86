package blob

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"

	"cloud.google.com/go/compute/metadata"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"golang.org/x/oauth2"

	"github.com/milkweedfs/milkweed/drivers"
)

// A storeError is what a store, or the way to it, said of a request that did not
// succeed, and what a program is told of it.
type storeError struct {
	errno error  // what it is to a program: a syscall.Errno, or drivers.ErrChanged
	text  string // what the store said

	again bool          // it may be otherwise when asked again
	after time.Duration // how long the store wants to be left alone
	renew bool          // with other credentials it may be otherwise
	began time.Time     // when the request did
}

// Error says what the store said, as well.
func (e *storeError) Error() string { return fmt.Sprintf("%v: %s", e.errno, e.text) }

func (e *storeError) Unwrap() error { return e.errno }

// explain is the one place where what went wrong with a request becomes an
// error that programs know; docs/SEMANTICS.md has the table.
func explain(v vendor, t *trace, err error) *storeError {
	code, text := v.failure(err)
	e := &storeError{errno: syscall.EIO, text: message(t, code, text, err), began: t.began}
	switch {
	case errors.Is(err, errVersion):
		e.errno = drivers.ErrChanged
	case errors.Is(err, errStalled) && !t.sent:
		e.errno, e.again, e.text = syscall.ETIMEDOUT, true, "no credentials in time"
	case errors.Is(err, errStalled):
		e.errno, e.again = syscall.ETIMEDOUT, true
	case t.status == http.StatusOK, t.status == http.StatusPartialContent: // and yet: the answer was not whole, or not what it said
		e.again = true
	case t.status == 0:
		e.unanswered(t, err)
	case expired[code] || t.status == http.StatusUnauthorized:
		e.errno, e.renew = syscall.EACCES, true
	case t.status == http.StatusForbidden:
		e.errno = syscall.EACCES
	case code == "NoSuchBucket", code == "ContainerNotFound":
		e.errno = syscall.ENOENT
	case t.kind == get && (t.status == http.StatusNotFound || t.status == http.StatusPreconditionFailed ||
		t.status == http.StatusRequestedRangeNotSatisfiable):
		e.errno = drivers.ErrChanged
	case t.status == http.StatusNotFound:
		e.errno = syscall.ENOENT
	case elsewhere(t, code):
		e.errno = syscall.ENXIO
	case passing(t.status), code == "RequestTimeout", code == "SlowDown":
		e.again, e.after = true, retryAfter(t.header)
	}
	return e
}

// invalid is the error of a location that nothing can be asked of.
func invalid(text string) error { return &storeError{errno: syscall.EINVAL, text: text} }

// errVersion is an answer with another version than was asked for.
var errVersion = errors.New("the object has changed")

// errNoListing is an answer of somebody else than the store, such as a load
// balancer: it does not say that nothing is there.
var errNoListing = errors.New("the answer is no listing")

// expired are the names that stores have for credentials that were good once.
var expired = map[string]bool{
	"ExpiredToken": true, "ExpiredTokenException": true, "RequestExpired": true, "TokenRefreshRequired": true, "InvalidToken": true,
	"InvalidAccessKeyId": true, "SignatureDoesNotMatch": true, "AuthenticationFailed": true, "InvalidAuthenticationInfo": true,
}

// passing reports whether a status is one that passes.
func passing(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return status >= 500
}

// elsewhere reports whether the bucket is in another region than was asked.
func elsewhere(t *trace, code string) bool {
	return t.status == http.StatusMovedPermanently || t.status == http.StatusTemporaryRedirect || code == "AuthorizationHeaderMalformed"
}

// region returns the region that a store says a bucket is in.
func region(t *trace) string { return t.header.Get("X-Amz-Bucket-Region") }

// unanswered explains an error of a request that got no answer.
func (e *storeError) unanswered(t *trace, err error) {
	var (
		dns      *net.DNSError
		op       *net.OpError
		verify   *tls.CertificateVerificationError
		record   tls.RecordHeaderError
		alert    tls.AlertError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		timeout  interface{ Timeout() bool }
	)
	if unsigned, ok := errors.AsType[*tokenError](err); ok {
		err = unsigned.err // and not what made of it an error of the network
	}
	switch {
	case errors.As(err, &verify), errors.As(err, &record), errors.As(err, &alert), errors.As(err, &unknown), errors.As(err, &hostname),
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		e.errno = syscall.EPROTO
	case !t.sent && !unreachable(err): // there are no credentials, or the library would not send it
		e.errno, e.renew = syscall.EACCES, true
	case errors.As(err, &dns) && dns.IsNotFound:
		e.errno, e.again = syscall.EHOSTUNREACH, true
	case errors.As(err, &timeout) && timeout.Timeout():
		e.errno, e.again = syscall.ETIMEDOUT, true
	case errors.As(err, &op) && op.Op == "dial":
		e.errno, e.again = syscall.EHOSTUNREACH, true
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			e.errno = errno
		}
	default: // reset, or closed in the middle
		e.again = true
	}
}

// unreachable reports whether an error is that of a server that gives credentials,
// and may be otherwise soon.
func unreachable(err error) bool {
	var (
		answered interface{ HTTPStatusCode() int } // of Amazon's libraries
		token    *oauth2.RetrieveError
		machine  *metadata.Error
		identity *azidentity.AuthenticationFailedError
		unsent   *url.Error
		network  net.Error
	)
	switch {
	case errors.As(err, &answered):
		return passing(answered.HTTPStatusCode())
	case errors.As(err, &token):
		return passing(token.Response.StatusCode)
	case errors.As(err, &machine):
		return passing(machine.Code)
	case errors.As(err, &identity):
		return identity.RawResponse != nil && passing(identity.RawResponse.StatusCode)
	}
	return errors.As(err, &unsent) || errors.As(err, &network)
}

// message is what the store said, for people, on one line and without what may
// be secret: URLs can be signed.
func message(t *trace, code, text string, err error) string {
	if code == "" && text == "" {
		text = err.Error()
		if e, ok := errors.AsType[*url.Error](err); ok {
			text = e.Err.Error()
		}
	}
	if code != "" {
		text = code + ": " + text
	}
	if t.status != 0 && t.status != http.StatusOK && t.status != http.StatusPartialContent {
		text = fmt.Sprintf("HTTP %d: %s", t.status, text)
	}
	if r := region(t); r != "" && elsewhere(t, code) {
		text += fmt.Sprintf(" (the bucket is in %s: add region=%s to the URL)", r, r)
	}
	text = query.ReplaceAllString(strings.Join(strings.Fields(text), " "), "?...")
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}
	return text
}

// query is that of a URL.
var query = regexp.MustCompile(`\?[^\s"]*=[^\s"]*`)

// longest is how much of a message is shown, in bytes: a proxy may send a page.
const longest = 500

// retryAfter is how long an answer asks to wait, 0 if it does not.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := time.ParseDuration(value + "s"); err == nil && seconds > 0 {
		return seconds
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// wrap says what was being done when err came. The error of a caller that does
// not want an answer any more is the caller's own.
func wrap(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
