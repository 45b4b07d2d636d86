package blob

import (
	"bytes"
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
	cdk "gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
	"golang.org/x/oauth2"
)

// azure is Azure Blob Storage. It reads the credentials from the environment once,
// when the process starts. Azure's library renews tokens that expire.
type azure struct {
	client  *container.Client
	blob    *cdk.Bucket
	tokens  *tokenProvider // nil: the credentials cannot be refreshed
	signing string         // how requests are signed
}

var _ vendor = (*azure)(nil)

func connectAzure(l Location, t *transport) (vendor, error) {
	a := &azure{}
	var err error
	client := &http.Client{Transport: t, CheckRedirect: noRedirect}
	if a.client, a.signing, err = azureClient(l, &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport:       client,
		Retry:           policy.RetryOptions{MaxRetries: -1}, // see retry.go
		PerCallPolicies: []policy.Policy{listingCheck{}},
	}}); err != nil {
		return nil, err
	}
	if a.signing == "" {
		if a.tokens, err = azureTokens(); err != nil {
			return nil, err
		}
		client.Transport, a.signing = &signer{a.tokens, t}, "default Azure credential"
	}
	if a.blob, err = azureblob.OpenBucket(context.Background(), a.client, nil); err != nil {
		return nil, err
	}
	return a, nil
}

// azureClient returns a client with the credentials of the environment, in the order
// in which Azure's own tools look for them, and a description of these. The
// description is "" if there are none; then requests are signed with tokens.
func azureClient(l Location, opts *container.ClientOptions) (c *container.Client, signing string, err error) {
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
		if c, err = container.NewClientFromConnectionString(connection, l.Bucket, opts); err != nil {
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
	case account != "" && key != "":
		shared, err := azblob.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, "", invalid("AZURE_STORAGE_KEY is not a key in base64")
		}
		c, err = container.NewClientWithSharedKeyCredential(containerURL, shared, opts)
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

// listingCheck rejects responses to a listing request that are not a page of keys.
// The portable library does not check that.
type listingCheck struct{}

// Do implements policy.Policy.
func (listingCheck) Do(r *policy.Request) (*http.Response, error) {
	resp, err := r.Next()
	if err != nil || resp.StatusCode != http.StatusOK || r.Raw().URL.Query().Get("comp") != "list" {
		return resp, err
	}
	body, err := runtime.Payload(resp) // rewinds the body
	if err != nil {
		return nil, err
	}
	if !isAzureListing(body) {
		return nil, errNoListing
	}
	return resp, nil
}

// isAzureListing reports whether body is a page with a list of keys, and each key has
// the properties that the portable library reads. Pages are long, so only the
// beginning is decoded.
func isAzureListing(body []byte) bool {
	blobs := bytes.Count(body, []byte("<Blob>"))
	for _, property := range []string{"<Last-Modified>", "<Content-Length>"} {
		if bytes.Count(body, []byte(property)) < blobs {
			return false
		}
	}
	for d, depth := xml.NewDecoder(bytes.NewReader(body)), 0; ; {
		token, err := d.Token()
		if err != nil {
			return false
		}
		switch token := token.(type) {
		case xml.StartElement:
			if depth == 1 && token.Name.Local == "Blobs" {
				return true
			}
			depth++
		case xml.EndElement:
			depth--
		}
	}
}

func (a *azure) bucket() *cdk.Bucket { return a.blob }

func (a *azure) list(prefix string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var in *container.ListBlobsHierarchyOptions
		if !as(&in) {
			return errVendorType
		}
		in.Prefix = &prefix
		return nil
	}
}

func (a *azure) item(o *cdk.ListObject) item {
	var (
		blob   container.BlobItem
		prefix container.BlobPrefix
	)
	switch {
	case o.IsDir && o.As(&prefix) && prefix.Name != nil:
		return item{key: *prefix.Name, dir: true}
	case !o.IsDir && o.As(&blob) && blob.Name != nil:
		i := item{key: *blob.Name, size: o.Size, mtime: o.ModTime}
		if blob.Properties != nil && blob.Properties.ETag != nil {
			i.version = etagVersion(string(*blob.Properties.ETag))
		}
		return i
	}
	return item{key: o.Key, dir: o.IsDir, size: o.Size, mtime: o.ModTime}
}

// read does not use the portable library, which always escapes keys.
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

func (a *azure) version(h http.Header) string { return etagVersion(h.Get("ETag")) }

func (a *azure) failure(err error) (code, text string) {
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return e.ErrorCode, http.StatusText(e.StatusCode)
	}
	if e, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok && e.RawResponse != nil {
		return "AuthenticationFailed", e.RawResponse.Status
	}
	return "", ""
}

func (a *azure) refreshCredentials(began time.Time) bool { return a.tokens.refresh(began) }

func (a *azure) identity(context.Context) (string, error) { return a.signing, nil }
