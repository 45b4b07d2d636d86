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

// amazon is Amazon S3, or a server that speaks its language.
type amazon struct {
	blob        *cdk.Bucket
	credentials *aws.CredentialsCache // nil: requests are not signed
	chain       *chain                // where they are from
}

var _ vendor = (*amazon)(nil)

func connectS3(ctx context.Context, l Location, t *transport, log *slog.Logger) (vendor, error) {
	load := []func(*config.LoadOptions) error{
		config.WithLogger(logging.LoggerFunc(func(_ logging.Classification, format string, v ...any) {
			log.Debug("S3 library", "message", fmt.Sprintf(format, v...))
		})),
	}
	if l.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(l.Profile))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, err
	}
	if client, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		if known := client.GetTransport().TLSClientConfig; known != nil && known.RootCAs != nil { // by AWS_CA_BUNDLE
			t.inner.TLSClientConfig = &tls.Config{RootCAs: known.RootCAs}
		}
	}
	a := &amazon{}
	var credentials *aws.CredentialsCache
	if !l.Anonymous {
		c := &chain{load: load, found: cfg.Credentials}
		credentials = aws.NewCredentialsCache(c, func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow, o.ExpiryWindowJitterFrac = time.Minute, 0.5
		})
		a.chain = c
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.HTTPClient = &http.Client{Transport: t, CheckRedirect: stay}
		o.Retryer = aws.NopRetryer{} // see retry.go
		o.UsePathStyle = l.PathStyle
		if l.Endpoint != "" {
			o.BaseEndpoint = &l.Endpoint
		}
		if l.Region != "" {
			o.Region = l.Region
		}
		if o.Region == "" && l.Endpoint != "" {
			o.Region = "us-east-1" // what servers other than Amazon's take for theirs
		}
		// No checksum is there for a part of an object, and few servers but
		// Amazon's have one for the whole.
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
		o.Credentials = aws.AnonymousCredentials{}
		if credentials != nil {
			o.Credentials = credentials
		}
		o.APIOptions = append(o.APIOptions, decodeKeys)
	})
	if found := client.Options().BaseEndpoint; l.Endpoint == "" && found != nil {
		return nil, invalid("the environment or the profile names the endpoint " + *found + ": add endpoint= to the URL, which says what dataset it is")
	}
	if client.Options().Region == "" {
		return nil, invalid("no region is set: add region= to the URL, or set AWS_REGION")
	}
	bucket, err := s3blob.OpenBucket(ctx, client, l.Bucket, nil)
	if err != nil {
		return nil, err
	}
	a.blob, a.credentials = bucket, credentials
	return a, nil
}

// stay follows no redirection: a request is signed for one place.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// A chain is the vendor's standard chain of places where credentials are. It is
// gone through again each time that new ones are needed, since a file that was
// read once may have others now.
type chain struct {
	load  []func(*config.LoadOptions) error
	found aws.CredentialsProvider // by the last look, and not used yet
	at    atomic.Int64            // when the last look began, in ns since 1970
}

// Retrieve implements aws.CredentialsProvider. The cache calls it one at a time,
// for all who wait, with a context that is never done: this must not hang.
func (c *chain) Retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	defer cancel()
	c.at.Store(time.Now().UnixNano())
	provider := c.found
	c.found = nil
	if provider == nil {
		cfg, err := config.LoadDefaultConfig(ctx, c.load...)
		if err != nil {
			return aws.Credentials{}, err
		}
		provider = cfg.Credentials
	}
	return provider.Retrieve(ctx)
}

// decodeKeys has listings be sent with the keys encoded, since XML cannot hold
// every character that a key can, and decodes them where the server has done so.
// An answer that is no listing is an error.
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
			if !isListing(page) {
				return out, metadata, errNoListing
			}
			for i := range page.Contents {
				if page.Contents[i].LastModified == nil { // which the portable library takes to be there
					page.Contents[i].LastModified = new(time.Time)
				}
			}
			if page.EncodingType == types.EncodingTypeUrl {
				err = decodePage(page)
			}
			return out, metadata, err
		}), middleware.After)
}

// isListing reports whether an answer is a listing, if only one of nothing. The
// library takes any document for one, and no document too.
func isListing(page *s3.ListObjectsV2Output) bool {
	return len(page.Contents) > 0 || len(page.CommonPrefixes) > 0 || page.Name != nil || page.IsTruncated != nil ||
		page.KeyCount != nil || page.MaxKeys != nil || page.EncodingType != ""
}

func decodePage(page *s3.ListObjectsV2Output) error {
	decode := func(s *string) (*string, error) {
		key, err := url.QueryUnescape(aws.ToString(s))
		if err != nil {
			return nil, fmt.Errorf("key in a listing: %w", err)
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

// The portable library escapes keys that it takes to be difficult, and finds
// only what it has written itself. They are given to the vendor's as they are.

func (a *amazon) list(prefix string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var in *s3.ListObjectsV2Input
		if !as(&in) {
			return errNoAs
		}
		if prefix != "" {
			in.Prefix = &prefix
		}
		return nil
	}
}

// errNoAs is a library that is not the one that this was written for.
var errNoAs = errors.New("the portable library does not give out the vendor's types")

func (a *amazon) item(o *cdk.ListObject) item {
	var (
		object types.Object
		prefix types.CommonPrefix
	)
	switch {
	case o.IsDir && o.As(&prefix):
		return item{key: aws.ToString(prefix.Prefix), dir: true}
	case o.As(&object):
		return item{key: aws.ToString(object.Key), size: o.Size, mtime: o.ModTime, version: tag(aws.ToString(object.ETag))}
	}
	return item{key: o.Key, dir: o.IsDir, size: o.Size, mtime: o.ModTime}
}

func (a *amazon) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	return a.blob.NewRangeReader(ctx, key, off, n, &cdk.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		var in *s3.GetObjectInput
		if !as(&in) {
			return errNoAs
		}
		in.Key = &key
		if match := quoted(version); match != "" {
			in.IfMatch = &match
		}
		return nil
	}})
}

func (a *amazon) version(h http.Header) string { return tag(h.Get("ETag")) }

func (a *amazon) failure(err error) (code, text string) {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode(), e.ErrorMessage()
	}
	if e, ok := errors.AsType[*smithy.OperationError](err); ok {
		if _, ok := errors.AsType[*url.Error](err); !ok {
			return "", e.Err.Error() // without which operation it was
		}
	}
	return "", ""
}

func (a *amazon) renew(began time.Time) bool {
	if a.credentials == nil {
		return false
	}
	if a.chain.at.Load() < began.UnixNano() {
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
