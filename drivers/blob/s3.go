package blob

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
)

// amazon is Amazon S3, or a server with the same protocol.
type amazon struct {
	client      *s3.Client
	bucket      string
	profile     string                // that the URL names
	payer       types.RequestPayer    // "": the owner of the bucket
	credentials *aws.CredentialsCache // nil: requests are not signed
	chain       *credentialChain      // behind credentials
	keys        keyDecoder
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
	a := &amazon{bucket: l.Bucket, profile: l.Profile, keys: keyDecoder{possible: allCodecs}}
	if l.isAmazon() {
		a.keys.possible = allCodecs[:1]
	}
	if l.RequesterPays {
		a.payer = types.RequestPayerRequester
	}
	if !l.Anonymous {
		a.chain = &credentialChain{options: options, first: cfg.Credentials}
		a.credentials = aws.NewCredentialsCache(a.chain, func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow, o.ExpiryWindowJitterFrac = time.Minute, 0.5
		})
	}
	a.client = a.newClient(cfg, l, t)
	if found := a.client.Options().BaseEndpoint; l.Endpoint == "" && found != nil {
		return nil, invalid("the environment or the profile names the endpoint " + *found + ": add endpoint= to the URL, which must identify the dataset")
	}
	if a.client.Options().Region == "" {
		return nil, invalid("no region is set: add region= to the URL, or set AWS_REGION")
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
		o.HTTPSignerV4 = &amazonSigner{&t.clock, v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })}
		o.Credentials = aws.AnonymousCredentials{}
		if a.credentials != nil {
			o.Credentials = a.credentials
		}
	})
}

// An amazonSigner signs requests with the time of the store (clock.go), and without the headers that proxies change.
type amazonSigner struct {
	clock *clock
	inner *v4.Signer
}

// unsignedHeaders are not part of a signature. Google rewrites Accept-Encoding before it verifies one. The others are
// for statistics of Amazon.
var unsignedHeaders = []string{"Accept-Encoding", "Amz-Sdk-Invocation-Id", "Amz-Sdk-Request"}

// SignHTTP implements s3.HTTPSignerV4.
func (s *amazonSigner) SignHTTP(ctx context.Context, c aws.Credentials, r *http.Request, payloadHash, service, region string, _ time.Time, options ...func(*v4.SignerOptions)) error {
	unsigned := make(http.Header)
	for _, name := range unsignedHeaders {
		if values, ok := r.Header[name]; ok {
			unsigned[name] = values
			delete(r.Header, name)
		}
	}
	err := s.inner.SignHTTP(ctx, c, r, payloadHash, service, region, s.clock.sign(ctx), options...)
	maps.Copy(r.Header, unsigned)
	return err
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

func (a *amazon) list(ctx context.Context, prefix, delimiter, token string, maxKeys int) (page, error) {
	in := &s3.ListObjectsV2Input{
		Bucket:       &a.bucket,
		MaxKeys:      aws.Int32(int32(maxKeys)),
		EncodingType: types.EncodingTypeUrl, // see s3keys.go
		RequestPayer: a.payer,
	}
	if prefix != "" {
		in.Prefix = &prefix
	}
	if delimiter != "" {
		in.Delimiter = &delimiter
	}
	if token != "" {
		in.ContinuationToken = &token
	}
	out, err := a.client.ListObjectsV2(ctx, in)
	if err != nil {
		return page{}, err
	}
	p, err := s3PageOf(out)
	if err == nil && out.EncodingType == types.EncodingTypeUrl {
		err = a.decode(ctx, prefix, &p)
	}
	return p, err
}

// s3PageOf returns the page in a response to a listing request. The keys may be encoded.
func s3PageOf(out *s3.ListObjectsV2Output) (page, error) {
	if !isS3Listing(out) {
		return page{}, errNoListing
	}
	if aws.ToBool(out.IsTruncated) && aws.ToString(out.NextContinuationToken) == "" {
		return page{}, errNoToken
	}
	p := page{items: make([]item, 0, len(out.Contents)+len(out.CommonPrefixes)), next: aws.ToString(out.NextContinuationToken)}
	for _, o := range out.Contents {
		p.items = append(p.items, item{
			key: aws.ToString(o.Key), size: aws.ToInt64(o.Size), mtime: aws.ToTime(o.LastModified), version: etagVersion(aws.ToString(o.ETag)),
			archived: o.StorageClass == types.ObjectStorageClassGlacier || o.StorageClass == types.ObjectStorageClassDeepArchive,
		})
	}
	for _, prefix := range out.CommonPrefixes {
		p.items = append(p.items, item{key: aws.ToString(prefix.Prefix), dir: true})
	}
	return p, nil
}

// isS3Listing reports whether a response is a listing, which may be empty. The
// library accepts any document, and also an empty body.
func isS3Listing(page *s3.ListObjectsV2Output) bool {
	return len(page.Contents) > 0 || len(page.CommonPrefixes) > 0 || page.Name != nil || page.IsTruncated != nil ||
		page.KeyCount != nil || page.MaxKeys != nil || page.EncodingType != ""
}

func (a *amazon) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	in := &s3.GetObjectInput{Bucket: &a.bucket, Key: &key, Range: aws.String(byteRange(off, n)), RequestPayer: a.payer}
	if match := ifMatch(version); match != "" {
		in.IfMatch = &match
	}
	out, err := a.client.GetObject(ctx, in)
	if err != nil {
		return nil, err
	}
	return out.Body, nil
}

func (a *amazon) revision(h http.Header) revision { return revisionOf(h) }

// checksum implements summer.
func (a *amazon) checksum(ctx context.Context, key, version string) (string, error) {
	in := &s3.HeadObjectInput{Bucket: &a.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled, RequestPayer: a.payer}
	if match := ifMatch(version); match != "" {
		in.IfMatch = &match
	}
	out, err := a.client.HeadObject(ctx, in)
	if err != nil {
		return "", err
	}
	for _, sum := range []struct {
		algorithm string
		value     *string
	}{
		{"SHA256", out.ChecksumSHA256}, {"SHA1", out.ChecksumSHA1}, {"CRC64NVME", out.ChecksumCRC64NVME},
		{"CRC32C", out.ChecksumCRC32C}, {"CRC32", out.ChecksumCRC32},
	} {
		if sum.value != nil {
			return sum.algorithm + " " + *sum.value, nil
		}
	}
	return "", nil
}

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

func (a *amazon) refreshCredentials(began time.Time) {
	if a.credentials != nil && a.chain.lookedUp.Load() < began.UnixNano() {
		a.credentials.Invalidate()
	}
}

func (a *amazon) identity(ctx context.Context) (string, error) {
	if a.credentials == nil {
		return "anonymous", nil
	}
	c, err := a.credentials.Retrieve(ctx)
	if err != nil {
		return "", err
	}
	source := c.Source
	if source == config.CredentialsSourceName {
		source = "the environment (AWS_ACCESS_KEY_ID)"
	} else if file, ok := strings.CutPrefix(source, "SharedConfigCredentials: "); ok {
		source = fmt.Sprintf("the profile %q in %s", profileOf(a.profile, "default"), file)
	}
	return fmt.Sprintf("access key %s, from %s", c.AccessKeyID, source), nil
}
