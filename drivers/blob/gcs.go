package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"cloud.google.com/go/storage"
	cdk "gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"golang.org/x/sync/singleflight"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
)

// googleCloud is Google Cloud Storage.
type googleCloud struct {
	blob   *cdk.Bucket
	tokens *tokens // nil: requests are not signed
}

var _ vendor = (*googleCloud)(nil)

// readOnly is all that may be done with the tokens.
const readOnly = "https://www.googleapis.com/auth/devstorage.read_only"

func connectGCS(ctx context.Context, l Location, t *transport) (vendor, error) {
	g := &googleCloud{}
	var signed http.RoundTripper = t
	// The library looks for credentials of its own, even if the client that it is
	// given signs requests or is to be anonymous; where Google's metadata server
	// does not answer that takes seconds.
	options := []option.ClientOption{option.WithoutAuthentication()}
	if l.Endpoint != "" {
		options = append(options, option.WithEndpoint(l.Endpoint+"/storage/v1/"))
	}
	if !l.Anonymous {
		if !private(l.Endpoint) {
			return nil, invalid("the endpoint is not https://, and would be sent credentials that anybody can read: add anonymous=true if it needs none")
		}
		g.tokens = &tokens{}
		if _, err := g.tokens.source(); err != nil {
			return nil, err
		}
		signed = &signer{g.tokens, t}
	}
	client := gcp.NewAnonymousHTTPClient(signed)
	client.CheckRedirect = stay
	bucket, err := gcsblob.OpenBucket(ctx, client, l.Bucket, &gcsblob.Options{ClientOptions: options})
	if err != nil {
		return nil, err
	}
	var storageClient *storage.Client
	if !bucket.As(&storageClient) {
		return nil, errNoAs
	}
	storageClient.SetRetry(storage.WithPolicy(storage.RetryNever)) // see retry.go
	g.blob = bucket
	return g, nil
}

// private reports whether nobody on the way to an endpoint can read along.
func private(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme != "http" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// A signer signs requests. The library's own would wait for a token for ever, and
// sign for whomever a request is redirected to.
type signer struct {
	tokens *tokens
	inner  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s *signer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := s.tokens.token(r.Context())
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	token.SetAuthHeader(r)
	return s.inner.RoundTrip(r)
}

// tokens are what requests are signed with, from the vendor's Application
// Default Credentials. These are looked for again after renew.
type tokens struct {
	asking singleflight.Group

	mu    sync.Mutex // guards the following
	found oauth2.TokenSource
	at    time.Time // when it was
}

// source returns what gives tokens.
func (t *tokens) source() (oauth2.TokenSource, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.found == nil {
		// Whoever asks for a token asks by way of this client.
		ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: credentialsTimeout})
		c, err := google.FindDefaultCredentials(ctx, readOnly)
		if err != nil {
			return nil, err
		}
		t.found, t.at = c.TokenSource, time.Now()
	}
	return t.found, nil
}

// token returns a token that is good. One is asked for at a time, for all who
// want one, each of whom waits until its context is done.
func (t *tokens) token(ctx context.Context) (*oauth2.Token, error) {
	asked := t.asking.DoChan("", func() (any, error) {
		source, err := t.source()
		if err != nil {
			return nil, err
		}
		return source.Token()
	})
	select {
	case r := <-asked:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*oauth2.Token), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (t *tokens) renew(began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at.Before(began) {
		t.found = nil
	}
}

func (g *googleCloud) bucket() *cdk.Bucket { return g.blob }

func (g *googleCloud) list(prefix string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var q *storage.Query
		if !as(&q) {
			return errNoAs
		}
		q.Prefix = prefix
		return q.SetAttrSelection([]string{"Name", "Size", "Created", "Generation"})
	}
}

func (g *googleCloud) item(o *cdk.ListObject) item {
	var a storage.ObjectAttrs
	switch {
	case !o.As(&a):
		return item{key: o.Key, dir: o.IsDir, size: o.Size, mtime: o.ModTime}
	case o.IsDir:
		return item{key: a.Prefix, dir: true}
	}
	// Created, and not Updated, which changes with what is said of the object.
	return item{key: a.Name, size: a.Size, mtime: a.Created, version: strconv.FormatInt(a.Generation, 10)}
}

func (g *googleCloud) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	return g.blob.NewRangeReader(ctx, key, off, n, &cdk.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		var (
			object **storage.ObjectHandle
			client *storage.Client
		)
		if !as(&object) || !g.blob.As(&client) {
			return errNoAs
		}
		// Compressed objects come as they are stored, and not unpacked: their
		// ranges and sizes would be others.
		h := client.Bucket((*object).BucketName()).Object(key).ReadCompressed(true)
		if generation, err := strconv.ParseInt(version, 10, 64); err == nil {
			h = h.If(storage.Conditions{GenerationMatch: generation})
		}
		*object = h
		return nil
	}})
}

func (g *googleCloud) version(h http.Header) string { return h.Get("X-Goog-Generation") }

func (g *googleCloud) failure(err error) (code, text string) {
	if e, ok := errors.AsType[*googleapi.Error](err); ok {
		if len(e.Errors) > 0 {
			code = e.Errors[0].Reason
		}
		if e.Message == "" {
			return code, e.Body
		}
		return code, e.Message
	}
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok { // which has all that was answered in its text
		return cmp.Or(e.ErrorCode, "no token"), cmp.Or(e.ErrorDescription, e.Response.Status)
	}
	return "", ""
}

func (g *googleCloud) renew(began time.Time) {
	if g.tokens != nil {
		g.tokens.renew(began)
	}
}

func (g *googleCloud) identity(context.Context) (string, error) {
	if g.tokens == nil {
		return "anonymous", nil
	}
	if _, err := g.tokens.source(); err != nil {
		return "", fmt.Errorf("application default credentials: %w", err)
	}
	return "application default credentials", nil
}
