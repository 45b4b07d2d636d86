package blob

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"golang.org/x/oauth2"
)

// azure is Azure Blob Storage. It reads the credentials from the environment once,
// when the process starts. Azure's library renews tokens that expire.
type azure struct {
	client  *container.Client
	tokens  *tokenProvider // nil: the credentials cannot be refreshed
	signing string         // how requests are signed
}

var _ vendor = (*azure)(nil)

func connectAzure(l Location, t *transport) (vendor, error) {
	a := &azure{}
	var err error
	client := &http.Client{Transport: t, CheckRedirect: noRedirect}
	if a.client, a.signing, err = azureClient(l, &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: client,
		Retry:     policy.RetryOptions{MaxRetries: -1}, // see retry.go
	}}, &azureClock{&t.clock}); err != nil {
		return nil, err
	}
	if a.signing == "" {
		if a.tokens, err = azureTokens(); err != nil {
			return nil, err
		}
		client.Transport, a.signing = &signer{a.tokens, t}, "default Azure credential"
	}
	return a, nil
}

// azureClient returns a client with the credentials of the environment, in the order
// in which Azure's own tools look for them, and a description of these. The
// description is "" if there are none; then requests are signed with tokens. A signature
// with a key contains the time, which is that of the clock.
func azureClient(l Location, opts *container.ClientOptions, clock *azureClock) (c *container.Client, signing string, err error) {
	keyOpts := *opts
	keyOpts.PerCallPolicies = []policy.Policy{clock}
	if l.Account == "" && l.Endpoint == "" {
		text := "no storage account is set: add account= to the URL"
		if account := os.Getenv("AZURE_STORAGE_ACCOUNT"); account != "" {
			text = "AZURE_STORAGE_ACCOUNT names the storage account " + account + ": add account= to the URL, which must identify the dataset"
		}
		return nil, "", invalid(text)
	}
	// The errors below do not contain the values of the variables, which are secrets.
	connection := cmp.Or(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"), os.Getenv("AZURE_STORAGEBLOB_CONNECTIONSTRING"))
	if strings.Contains(";"+connection+";", ";AccountName="+l.Account+";") && !l.Anonymous && l.Endpoint == "" {
		if !strings.Contains(connection, "AccountKey=") { // but a shared access signature
			keyOpts.PerCallPolicies = nil
		}
		if c, err = container.NewClientFromConnectionString(connection, l.Bucket, &keyOpts); err != nil {
			return nil, "", invalid("AZURE_STORAGE_CONNECTION_STRING is not a connection string")
		}
		return c, "connection string of account " + l.Account, nil
	}
	account := cmp.Or(l.Account, os.Getenv("AZURE_STORAGE_ACCOUNT"))
	containerURL, err := url.JoinPath(cmp.Or(l.Endpoint, "https://"+account+".blob.core.windows.net"), l.Bucket)
	if err != nil {
		return nil, "", err
	}
	key, sas := os.Getenv("AZURE_STORAGE_KEY"), os.Getenv("AZURE_STORAGE_SAS_TOKEN")
	switch {
	case l.Anonymous:
		c, err = container.NewClientWithNoCredential(containerURL, opts)
		return c, "anonymous", err
	case account == "" && key != "":
		return nil, "", invalid("AZURE_STORAGE_KEY is set, and it is not known of which storage account: add account= to the URL, or unset the variable to use other credentials")
	case key != "":
		shared, err := azblob.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, "", invalid("AZURE_STORAGE_KEY is not a key in base64")
		}
		c, err = container.NewClientWithSharedKeyCredential(containerURL, shared, &keyOpts)
		return c, "shared key of account " + account, err
	case !confidential(l.Endpoint):
		return nil, "", invalid("the endpoint is not https://, so others could read the token in transit: use https://")
	case sas != "":
		c, err = container.NewClientWithNoCredential(containerURL+"?"+strings.TrimPrefix(sas, "?"), opts)
		return c, "shared access signature", err
	}
	c, err = container.NewClientWithNoCredential(containerURL, opts)
	return c, "", err
}

// azureClock is the policy that gives requests the time of the store. The library signs it with a shared key.
type azureClock struct{ clock *clock }

// Do implements policy.Policy.
func (p *azureClock) Do(r *policy.Request) (*http.Response, error) {
	// Not Header.Set: the library looks for this spelling, and otherwise replaces the time.
	r.Raw().Header["x-ms-date"] = []string{p.clock.sign(r.Raw().Context()).UTC().Format(http.TimeFormat)}
	return r.Next()
}

// azureTokens returns the tokens of Azure's default credential. The tokenProvider
// lets each request wait for a token only until its own context is done: with the
// library alone, all requests wait until the first one has a token.
func azureTokens() (*tokenProvider, error) {
	p := &tokenProvider{}
	credential, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
		ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: &p.transport}},
	})
	if err != nil {
		return nil, err
	}
	p.findCredentials = func() (oauth2.TokenSource, error) {
		return oauth2.ReuseTokenSourceWithExpiry(nil, azureSource{credential, &p.transport}, time.Minute), nil
	}
	return p, nil
}

// An azureSource is an oauth2.TokenSource whose tokens are from an Azure credential.
type azureSource struct {
	credential azcore.TokenCredential
	transport  *tokenTransport // used by the credential
}

// Token implements oauth2.TokenSource.
func (s azureSource) Token() (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.Background(), credentialsTimeout)
	defer cancel()
	token, err := s.credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{"https://storage.azure.com/.default"}})
	if err == nil {
		return &oauth2.Token{AccessToken: token.Token, Expiry: token.ExpiresOn}, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if _, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); !ok {
		// There are no credentials. The library sends a request to find out whether
		// this is a machine of Azure, which has some. Other machines get no response
		// to it, which is not a reason to retry.
		s.transport.noResponse.Store(nil)
	}
	return nil, err
}

func (a *azure) list(ctx context.Context, prefix, delimiter, token string, maxKeys int) (page, error) {
	n := int32(maxKeys)
	opts := &container.ListBlobsHierarchyOptions{Prefix: &prefix, MaxResults: &n, Include: container.ListBlobsInclude{Metadata: true}}
	if token != "" {
		opts.Marker = &token
	}
	resp, err := a.client.NewListBlobsHierarchyPager(delimiter, opts).NextPage(ctx)
	if err != nil {
		return page{}, err
	}
	return azurePageOf(&resp.ListBlobsHierarchySegmentResponse)
}

// azurePageOf returns the page in a response to a listing request. The library accepts
// any XML document, and also an empty body.
func azurePageOf(resp *container.ListBlobsHierarchySegmentResponse) (page, error) {
	if resp.Segment == nil {
		return page{}, errNoListing
	}
	p := page{next: valueOf(resp.NextMarker)}
	for _, o := range resp.Segment.BlobItems {
		if o.Properties == nil || o.Properties.ContentLength == nil || o.Properties.LastModified == nil {
			return page{}, errNoListing
		}
		i := item{key: valueOf(o.Name), size: *o.Properties.ContentLength, mtime: *o.Properties.LastModified}
		i.version = etagVersion(string(valueOf(o.Properties.ETag)))
		i.archived = valueOf(o.Properties.AccessTier) == azblob.AccessTierArchive
		i.stub = i.size == 0 && isAzureStub(o)
		p.items = append(p.items, i)
	}
	for _, prefix := range resp.Segment.BlobPrefixes {
		p.items = append(p.items, item{key: valueOf(prefix.Name), dir: true})
	}
	return p, nil
}

// isAzureStub reports whether an empty object stands for a directory. Hadoop and AzCopy make such objects, and so do
// accounts with a hierarchical namespace.
func isAzureStub(o *container.BlobItem) bool {
	isFolder := valueOf(o.Metadata["hdi_isfolder"]) // the library makes names lower case
	return strings.EqualFold(isFolder, "true") || valueOf(o.Properties.ResourceType) == "directory"
}

// valueOf returns the value that p points to, the zero value if p is nil.
func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (a *azure) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	opts := &azblob.DownloadStreamOptions{Range: azblob.HTTPRange{Offset: off, Count: n}}
	if match := azcore.ETag(ifMatch(version)); match != "" {
		opts.AccessConditions = &azblob.AccessConditions{
			ModifiedAccessConditions: &azblob.ModifiedAccessConditions{IfMatch: &match},
		}
	}
	resp, err := a.client.NewBlobClient(key).DownloadStream(ctx, opts)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (a *azure) revision(h http.Header) revision { return revisionOf(h) }

func (a *azure) failure(err error) (code, text string) {
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return e.ErrorCode, http.StatusText(e.StatusCode) + azureDetail(e)
	}
	if e, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok && e.RawResponse != nil {
		return "AuthenticationFailed", e.RawResponse.Status
	}
	return "", ""
}

// azureDetail returns why a token or a signature is not valid, if the response has it, with a space before
// it. Other details contain signatures.
func azureDetail(e *azcore.ResponseError) string {
	if e.RawResponse == nil {
		return ""
	}
	body, err := runtime.Payload(e.RawResponse) // the library has read it
	if err != nil {
		return ""
	}
	var reply struct {
		Detail string `xml:"AuthenticationErrorDetail"`
	}
	if xml.Unmarshal(body, &reply) != nil || !strings.HasPrefix(reply.Detail, "Signature not valid in the specified") && !strings.HasPrefix(reply.Detail, "Signed expiry time") {
		return ""
	}
	return " " + reply.Detail
}

func (a *azure) refreshCredentials(began time.Time) { a.tokens.refresh(began) }

func (a *azure) identity(context.Context) (string, error) { return a.signing, nil }
