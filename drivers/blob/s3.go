package blob

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	cdk "gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
)

// amazon is Amazon S3, or a server with the same protocol.
type amazon struct {
	blob        *cdk.Bucket
	credentials *aws.CredentialsCache // nil: requests are not signed
	chain       *credentialChain      // behind credentials
}

var _ vendor = (*amazon)(nil)

func connectS3(ctx context.Context, l Location, t *transport, log *slog.Logger) (vendor, error) {
	options := []func(*config.LoadOptions) error{
		config.WithLogger(logging.LoggerFunc(func(_ logging.Classification, format string, v ...any) {
			log.Debug("S3 library", "message", fmt.Sprintf(format, v...))
		})),
	}
	if l.Profile != "" {
		options = append(options, config.WithSharedConfigProfile(l.Profile))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, err
	}
	// AWS_CA_BUNDLE sets the root certificates of the library's own HTTP client.
	if client, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		if tlsConfig := client.GetTransport().TLSClientConfig; tlsConfig != nil && tlsConfig.RootCAs != nil {
			t.inner.TLSClientConfig = &tls.Config{RootCAs: tlsConfig.RootCAs}
		}
	}
	a := &amazon{}
	if !l.Anonymous {
		a.chain = &credentialChain{options: options, first: cfg.Credentials}
		a.credentials = aws.NewCredentialsCache(a.chain, func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow, o.ExpiryWindowJitterFrac = time.Minute, 0.5
		})
	}
	client := a.newClient(cfg, l, t)
	if found := client.Options().BaseEndpoint; l.Endpoint == "" && found != nil {
		return nil, invalid("the environment or the profile names the endpoint " + *found + ": add endpoint= to the URL, which must identify the dataset")
	}
	if client.Options().Region == "" {
		return nil, invalid("no region is set: add region= to the URL, or set AWS_REGION")
	}
	if a.blob, err = s3blob.OpenBucket(ctx, client, l.Bucket, nil); err != nil {
		return nil, err
	}
	return a, nil
}

// newClient returns a client of a location, whose requests t sends.
func (a *amazon) newClient(cfg aws.Config, l Location, t *transport) *s3.Client {
	return s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.HTTPClient = &http.Client{Transport: t, CheckRedirect: noRedirect}
		o.Retryer = aws.NopRetryer{} // see retry.go
		o.UsePathStyle = l.PathStyle
		if l.Endpoint != "" {
			o.BaseEndpoint = &l.Endpoint
		}
		if l.Region != "" {
			o.Region = l.Region
		}
		if o.Region == "" && l.Endpoint != "" {
			o.Region = "us-east-1" // the default of servers other than Amazon's
		}
		// A range of an object has no checksum, and most servers other than Amazon's
		// have none for the whole object.
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
		o.Credentials = aws.AnonymousCredentials{}
		if a.credentials != nil {
			o.Credentials = a.credentials
		}
		o.APIOptions = append(o.APIOptions, decodeKeys)
	})
}

// noRedirect makes an HTTP client follow no redirects: the signature of a request is
// valid for one host only.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// A credentialChain is Amazon's default chain of credential providers. It evaluates
// the chain again each time that new credentials are needed, because files may have
// changed since they were read.
type credentialChain struct {
	options  []func(*config.LoadOptions) error
	first    aws.CredentialsProvider // result of the first evaluation; nil after its use
	lookedUp atomic.Int64            // start of the last lookup, in ns since 1970
}

// Retrieve implements aws.CredentialsProvider. The cache does not call it
// concurrently; all waiting requests share one call. Its ctx is never done, so
// Retrieve needs a time-out of its own.
func (c *credentialChain) Retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	defer cancel()
	c.lookedUp.Store(time.Now().UnixNano())
	provider := c.first
	c.first = nil
	if provider == nil {
		cfg, err := config.LoadDefaultConfig(ctx, c.options...)
		if err != nil {
			return aws.Credentials{}, err
		}
		provider = cfg.Credentials
	}
	return provider.Retrieve(ctx)
}

// decodeKeys adds middleware that requests URL-encoded keys in listings, because XML
// cannot represent every character of a key. It decodes the keys if the server has
// encoded them. A response that is not a listing is an error.
func decodeKeys(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("DecodeKeys",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			if list, ok := in.Parameters.(*s3.ListObjectsV2Input); ok {
				list.EncodingType = types.EncodingTypeUrl
			}
			out, metadata, err := next.HandleInitialize(ctx, in)
			page, ok := out.Result.(*s3.ListObjectsV2Output)
			if !ok || err != nil {
				return out, metadata, err
			}
			if !isS3Listing(page) {
				return out, metadata, errNoListing
			}
			if aws.ToBool(page.IsTruncated) && aws.ToString(page.NextContinuationToken) == "" {
				return out, metadata, errNoToken
			}
			for i := range page.Contents {
				if page.Contents[i].LastModified == nil { // the portable library dereferences it
					page.Contents[i].LastModified = new(time.Time)
				}
			}
			if page.EncodingType == types.EncodingTypeUrl {
				err = decodePage(page)
			}
			return out, metadata, err
		}), middleware.After)
}

// isS3Listing reports whether a response is a listing, which may be empty. The
// library accepts any document, and also an empty body.
func isS3Listing(page *s3.ListObjectsV2Output) bool {
	return len(page.Contents) > 0 || len(page.CommonPrefixes) > 0 || page.Name != nil || page.IsTruncated != nil ||
		page.KeyCount != nil || page.MaxKeys != nil || page.EncodingType != ""
}

func decodePage(page *s3.ListObjectsV2Output) error {
	decode := func(s *string) (*string, error) {
		key, err := url.QueryUnescape(aws.ToString(s))
		if err != nil {
			return nil, fmt.Errorf("decode a key of a listing: %w", err)
		}
		return &key, nil
	}
	var err error
	for i := range page.Contents {
		if page.Contents[i].Key, err = decode(page.Contents[i].Key); err != nil {
			return err
		}
	}
	for i := range page.CommonPrefixes {
		if page.CommonPrefixes[i].Prefix, err = decode(page.CommonPrefixes[i].Prefix); err != nil {
			return err
		}
	}
	return nil
}

func (a *amazon) bucket() *cdk.Bucket { return a.blob }

// list passes the prefix to Amazon's library unchanged. The portable library would
// escape some characters, and find only keys that it has written itself. The other
// vendors, and read, do the same.
func (a *amazon) list(prefix string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var in *s3.ListObjectsV2Input
		if !as(&in) {
			return errVendorType
		}
		if prefix != "" {
			in.Prefix = &prefix
		}
		return nil
	}
}

// errVendorType means that the portable library is not the version that this package was
// written for.
var errVendorType = errors.New("the portable library does not expose the vendor's types")

func (a *amazon) item(o *cdk.ListObject) item {
	var (
		object types.Object
		prefix types.CommonPrefix
	)
	switch {
	case o.IsDir && o.As(&prefix):
		return item{key: aws.ToString(prefix.Prefix), dir: true}
	case o.As(&object):
		return item{key: aws.ToString(object.Key), size: o.Size, mtime: o.ModTime, version: etagVersion(aws.ToString(object.ETag))}
	}
	return item{key: o.Key, dir: o.IsDir, size: o.Size, mtime: o.ModTime}
}

func (a *amazon) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	return a.blob.NewRangeReader(ctx, key, off, n, &cdk.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		var in *s3.GetObjectInput
		if !as(&in) {
			return errVendorType
		}
		in.Key = &key
		if match := ifMatch(version); match != "" {
			in.IfMatch = &match
		}
		return nil
	}})
}

func (a *amazon) version(h http.Header) string { return etagVersion(h.Get("ETag")) }

func (a *amazon) failure(err error) (code, text string) {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode(), e.ErrorMessage()
	}
	if e, ok := errors.AsType[*smithy.OperationError](err); ok {
		if _, ok := errors.AsType[*url.Error](err); !ok {
			return "", e.Err.Error() // without the name of the operation
		}
	}
	return "", ""
}

func (a *amazon) refreshCredentials(began time.Time) bool {
	if a.credentials == nil {
		return false
	}
	if a.chain.lookedUp.Load() < began.UnixNano() {
		a.credentials.Invalidate()
	}
	return true
}

func (a *amazon) identity(ctx context.Context) (string, error) {
	if a.credentials == nil {
		return "anonymous", nil
	}
	c, err := a.credentials.Retrieve(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("access key %s, from %s", c.AccessKeyID, c.Source), nil
}
