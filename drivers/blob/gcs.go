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
	"time"

	"cloud.google.com/go/storage"
	cdk "gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
)

// googleCloud is Google Cloud Storage.
type googleCloud struct {
	blob   *cdk.Bucket
	tokens *tokenProvider // nil: requests are not signed
}

var _ vendor = (*googleCloud)(nil)

// readOnlyScope is the scope of the tokens.
const readOnlyScope = "https://www.googleapis.com/auth/devstorage.read_only"

func connectGCS(ctx context.Context, l Location, t *transport) (vendor, error) {
	g := &googleCloud{}
	var signed http.RoundTripper = t
	// By default the library searches for credentials of its own, even if its HTTP
	// client signs requests or is anonymous. The search takes seconds on a machine where
	// Google's metadata server does not respond.
	options := []option.ClientOption{option.WithoutAuthentication()}
	if l.Endpoint != "" {
		options = append(options, option.WithEndpoint(l.Endpoint+"/storage/v1/"))
	}
	if !l.Anonymous {
		if !confidential(l.Endpoint) {
			return nil, invalid("the endpoint is not https://, so others could read the credentials in transit: use https://, or add anonymous=true if the endpoint needs no credentials")
		}
		g.tokens = &tokenProvider{}
		g.tokens.findCredentials = func() (oauth2.TokenSource, error) { return googleCredentials(&g.tokens.transport) }
		if _, err := g.tokens.source(); err != nil {
			return nil, err
		}
		signed = &signer{g.tokens, t}
	}
	client := gcp.NewAnonymousHTTPClient(signed)
	client.CheckRedirect = noRedirect
	bucket, err := gcsblob.OpenBucket(ctx, client, l.Bucket, &gcsblob.Options{ClientOptions: options})
	if err != nil {
		return nil, err
	}
	var storageClient *storage.Client
	if !bucket.As(&storageClient) {
		return nil, errVendorType
	}
	storageClient.SetRetry(storage.WithPolicy(storage.RetryNever)) // see retry.go
	g.blob = bucket
	return g, nil
}

// confidential reports whether requests to an endpoint stay secret in transit: they
// are encrypted, or do not leave this machine.
func confidential(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme != "http" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// googleCredentials returns Google's Application Default Credentials. They request
// tokens through t.
func googleCredentials(t *tokenTransport) (oauth2.TokenSource, error) {
	client := &http.Client{Transport: t, Timeout: credentialsTimeout}
	c, err := google.FindDefaultCredentials(context.WithValue(context.Background(), oauth2.HTTPClient, client), readOnlyScope)
	if err != nil {
		return nil, err
	}
	return c.TokenSource, nil
}

func (g *googleCloud) bucket() *cdk.Bucket { return g.blob }

func (g *googleCloud) list(prefix string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var q *storage.Query
		if !as(&q) {
			return errVendorType
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
	// Created and not Updated, which also changes with the metadata of the object.
	return item{key: a.Name, size: a.Size, mtime: a.Created, version: strconv.FormatInt(a.Generation, 10)}
}

func (g *googleCloud) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	return g.blob.NewRangeReader(ctx, key, off, n, &cdk.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		var (
			object **storage.ObjectHandle
			client *storage.Client
		)
		if !as(&object) || !g.blob.As(&client) {
			return errVendorType
		}
		// Without ReadCompressed, Google decompresses some objects. Their ranges and
		// sizes would not match the listing.
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
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		// Not e.Error(), which contains the whole response body.
		return cmp.Or(e.ErrorCode, "no token"), cmp.Or(e.ErrorDescription, e.Response.Status)
	}
	return "", ""
}

func (g *googleCloud) refreshCredentials(began time.Time) bool { return g.tokens.refresh(began) }

func (g *googleCloud) identity(context.Context) (string, error) {
	if g.tokens == nil {
		return "anonymous", nil
	}
	if _, err := g.tokens.source(); err != nil {
		return "", fmt.Errorf("application default credentials: %w", err)
	}
	return "application default credentials", nil
}
