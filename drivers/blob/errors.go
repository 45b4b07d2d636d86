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

// A storeError is the error of a request that did not succeed, whether the store
// returned it or the network.
type storeError struct {
	errno error  // for programs: a syscall.Errno, or drivers.ErrChanged
	text  string // for people: the message of the store

	code   string // of the store
	status int    // of the response; 0: there was none
	remedy string // for people; see Remedy

	began    time.Time     // when the request began
	skew     time.Duration // by how much the clock of the store is ahead of the time of the signature
	ahead    time.Duration // by how much it is ahead of the clock of this machine
	untimely bool          // the store may accept a signature with its own time

	retryable  bool          // a retry may succeed
	retryAfter time.Duration // minimum delay of a retry, 0 if the store gave none
	refresh    bool          // a retry with other credentials may succeed
	archived   bool          // the object must be restored first
	reported   bool          // it matches drivers.ErrReported
}

// isOfSignature reports whether e concerns all requests that are signed in the same way.
func (e *storeError) isOfSignature() bool { return e.refresh || e.untimely }

// Error returns the errno and the message of the store.
func (e *storeError) Error() string { return fmt.Sprintf("%v: %s", e.errno, e.text) }

func (e *storeError) Unwrap() []error {
	if e.reported {
		return []error{e.errno, drivers.ErrReported}
	}
	return []error{e.errno}
}

// classify is the function classify. Other credentials are of no use if the store has just accepted these, or
// requests are not signed. The time of the store may be.
func (b *Bucket) classify(t *trace, err error) *storeError {
	e := classify(b.vendor, t, err)
	if e.refresh && (b.location.Anonymous || b.credentials.justAccepted(e.began)) {
		e.refresh = false
	}
	b.judgeTime(t, e)
	return e
}

// classify is the one place that turns the error of a request into an error that
// programs understand. docs/SEMANTICS.md has the table.
func classify(v vendor, t *trace, err error) *storeError {
	code, text := v.failure(err)
	ahead, skew := t.clocks()
	e := &storeError{errno: syscall.EIO, text: message(t, code, text, err), code: code, status: t.status, began: t.began, ahead: ahead, skew: skew}
	switch {
	case errors.Is(err, errVersion):
		e.errno = drivers.ErrChanged
	case errors.Is(err, errStalled) && !t.sent:
		e.errno, e.retryable, e.text = syscall.ETIMEDOUT, true, "no credentials in time"
	case errors.Is(err, errStalled):
		e.errno, e.retryable = syscall.ETIMEDOUT, true
	case t.status == http.StatusOK, t.status == http.StatusPartialContent:
		e.retryable = true // the body was incomplete, or not the one requested
	case t.status == 0:
		e.classifyNoResponse(t, err)
	case archiveCodes[code]:
		e.errno, e.archived = syscall.EACCES, true
	case credentialCodes[code] || t.status == http.StatusUnauthorized:
		e.errno, e.refresh = syscall.EACCES, true
	case t.status == http.StatusForbidden, code == codeRequesterPays:
		e.errno = syscall.EACCES
	case code == "NoSuchBucket", code == "ContainerNotFound":
		e.errno = syscall.ENOENT
	case t.kind == get && (t.status == http.StatusNotFound || t.status == http.StatusPreconditionFailed ||
		t.status == http.StatusRequestedRangeNotSatisfiable):
		e.errno = drivers.ErrChanged
	case t.status == http.StatusNotFound:
		e.errno = syscall.ENOENT
	case wrongRegion(t, code):
		e.errno = syscall.ENXIO
	case transient(t.status), code == "RequestTimeout", code == "SlowDown":
		e.retryable, e.retryAfter = true, retryAfter(t.header)
	}
	return e
}

// invalid returns the error for a location that is incomplete or unsafe. No request
// was sent.
func invalid(text string) error { return &storeError{errno: syscall.EINVAL, text: text} }

// errVersion is the error for a response that has another version of the object
// than the one that was requested. errRevision is that error if the ETag, the generation or the time
// differs. If only the size does, the error is not errRevision.
var (
	errVersion  = errors.New("the object has changed")
	errRevision = fmt.Errorf("%w", errVersion)
)

// errNoListing is the error for a response that is not a listing. A load balancer
// may have sent it in place of the store, so it does not mean an empty directory.
var errNoListing = errors.New("the response is not a listing")

// errNoToken is the error for a part of a listing after which there is no way to go on. Without
// it, the other keys would be missing.
var errNoToken = errors.New("the listing is truncated, and has no continuation token")

// credentialCodes are the error codes for credentials that may have been valid
// before: new credentials may help.
var credentialCodes = map[string]bool{
	"ExpiredToken": true, "ExpiredTokenException": true, "RequestExpired": true, "TokenRefreshRequired": true, "InvalidToken": true,
	"InvalidAccessKeyId": true, "SignatureDoesNotMatch": true, "AuthenticationFailed": true, "InvalidAuthenticationInfo": true,
	codeSkewed:           true,
	"XAdminUserNotFound": true, // of Versity's gateway, with the status 404
}

// keyCodes are those of them that a wrong clock of this machine cannot cause.
var keyCodes = map[string]bool{
	"ExpiredToken": true, "ExpiredTokenException": true, "TokenRefreshRequired": true, "InvalidToken": true,
	"InvalidAccessKeyId": true, "XAdminUserNotFound": true,
}

// archiveCodes are the error codes for an object that must be restored before it can be read.
var archiveCodes = map[string]bool{"InvalidObjectState": true, "BlobArchived": true, "BlobBeingRehydrated": true}

// transient reports whether a retry of a request with this status may succeed.
func transient(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return status >= 500
}

// wrongRegion reports whether the bucket is in another region than the one that
// the request was sent to.
func wrongRegion(t *trace, code string) bool {
	return t.status == http.StatusMovedPermanently || t.status == http.StatusTemporaryRedirect || code == "AuthorizationHeaderMalformed"
}

// region returns the region of the bucket from a response, "" if it has none.
func region(t *trace) string { return t.header.Get("X-Amz-Bucket-Region") }

// classifyNoResponse classifies the error of a request without a response.
func (e *storeError) classifyNoResponse(t *trace, err error) {
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
		e.skew = unsigned.skew
		err = unsigned.err // without the *url.Error around it, which is a net.Error
	}
	switch {
	case errors.As(err, &verify), errors.As(err, &record), errors.As(err, &alert), errors.As(err, &unknown), errors.As(err, &hostname),
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		e.errno = syscall.EPROTO
	case !t.sent && !transientCredentialError(err):
		// There are no credentials, or the library rejected the request.
		e.errno, e.refresh = syscall.EACCES, true
	case errors.As(err, &dns) && dns.IsNotFound:
		e.errno, e.retryable = syscall.EHOSTUNREACH, true
	case errors.As(err, &timeout) && timeout.Timeout():
		e.errno, e.retryable = syscall.ETIMEDOUT, true
	case errors.As(err, &op) && op.Op == "dial":
		e.errno, e.retryable = syscall.EHOSTUNREACH, true
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			e.errno = errno
		}
	default: // the connection was reset, or closed too early
		e.retryable = true
	}
}

// transientCredentialError reports whether err is an error of a server that issues
// credentials, and a retry may succeed.
func transientCredentialError(err error) bool {
	var (
		amazonErr  interface{ HTTPStatusCode() int }
		oauthErr   *oauth2.RetrieveError
		googleErr  *metadata.Error
		azureErr   *azidentity.AuthenticationFailedError
		requestErr *url.Error
		netErr     net.Error
	)
	switch {
	case errors.As(err, &amazonErr):
		return transient(amazonErr.HTTPStatusCode())
	case errors.As(err, &oauthErr):
		return transient(oauthErr.Response.StatusCode)
	case errors.As(err, &googleErr):
		return transient(googleErr.Code)
	case errors.As(err, &azureErr):
		return azureErr.RawResponse != nil && transient(azureErr.RawResponse.StatusCode)
	}
	return errors.As(err, &requestErr) || errors.As(err, &netErr)
}

// message returns the message of the store for people: one line, without the queries
// of URLs, because a query may be a signature.
func message(t *trace, code, text string, err error) string {
	if code == "" && text == "" {
		text = err.Error()
		if e, ok := errors.AsType[*url.Error](err); ok {
			text = e.Err.Error()
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	if !strings.HasSuffix(text, "..") {
		text = strings.TrimSuffix(text, ".") // it is a part of a sentence
	}
	if code != "" {
		text = code + ": " + text
	}
	if t.status != 0 && t.status != http.StatusOK && t.status != http.StatusPartialContent {
		text = fmt.Sprintf("HTTP %d: %s", t.status, text)
	}
	if r := region(t); r != "" && wrongRegion(t, code) {
		text += fmt.Sprintf(" (the bucket is in %s: add region=%s to the URL)", r, r)
	}
	text = urlQuery.ReplaceAllString(text, "?...")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}

// urlQuery matches the query of a URL.
var urlQuery = regexp.MustCompile(`\?[^\s"]*=[^\s"]*`)

// maxMessage is the length of the longest message, in bytes. A proxy may send a
// whole page.
const maxMessage = 500

// retryAfter returns the time that a response requests before a retry, 0 if it
// requests none.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := time.ParseDuration(value + "s"); err == nil && seconds > 0 {
		return seconds
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(date))
	}
	return 0
}

// wrap adds the operation and the name to err. If ctx is done it returns the cause
// of that in place of err. It returns nil if err is nil.
func wrap(ctx context.Context, op, name string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
