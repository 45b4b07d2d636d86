package blob

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	cdk "gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
)

// azure is Azure Blob Storage. Its credentials are those that the environment
// has when the process starts, of which Azure's own library renews what expires.
type azure struct {
	client  *container.Client
	blob    *cdk.Bucket
	signing string // how requests are signed
}

var _ vendor = (*azure)(nil)

func connectAzure(l Location, t *transport) (vendor, error) {
	a := &azure{}
	var err error
	if a.client, a.signing, err = azureClient(l, &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: &http.Client{Transport: t},
		Retry:     policy.RetryOptions{MaxRetries: -1}, // see retry.go
	}}); err != nil {
		return nil, err
	}
	if a.blob, err = azureblob.OpenBucket(context.Background(), a.client, nil); err != nil {
		return nil, err
	}
	return a, nil
}

// azureClient returns a client with the credentials that the environment has, in
// the order in which the vendor's own tools look for them, and their kind.
func azureClient(l Location, opts *container.ClientOptions) (c *container.Client, signing string, err error) {
	if l.Account == "" && l.Endpoint == "" {
		said := "no storage account is named"
		if account := os.Getenv("AZURE_STORAGE_ACCOUNT"); account != "" {
			said = "the environment names the storage account " + account
		}
		return nil, "", invalid(said + ": add account= to the URL, which says what dataset it is")
	}
	connection := cmp.Or(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"), os.Getenv("AZURE_STORAGEBLOB_CONNECTIONSTRING"))
	if strings.Contains(";"+connection+";", ";AccountName="+l.Account+";") && !l.Anonymous && l.Endpoint == "" {
		if c, err = container.NewClientFromConnectionString(connection, l.Bucket, opts); err != nil {
			return nil, "", invalid("AZURE_STORAGE_CONNECTION_STRING is not one") // and not what it is
		}
		return c, "connection string of account " + l.Account, nil
	}
	account := cmp.Or(l.Account, os.Getenv("AZURE_STORAGE_ACCOUNT"))
	at, err := url.JoinPath(cmp.Or(l.Endpoint, "https://"+account+".blob.core.windows.net"), l.Bucket)
	if err != nil {
		return nil, "", err
	}
	key, sas := os.Getenv("AZURE_STORAGE_KEY"), os.Getenv("AZURE_STORAGE_SAS_TOKEN")
	switch {
	case l.Anonymous:
		c, err = container.NewClientWithNoCredential(at, opts)
		return c, "anonymous", err
	case account != "" && key != "":
		shared, err := azblob.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, "", invalid("AZURE_STORAGE_KEY is not a key in base64") // and not what it is
		}
		c, err = container.NewClientWithSharedKeyCredential(at, shared, opts)
		return c, "shared key of account " + account, err
	case sas != "" && !private(l.Endpoint):
		return nil, "", invalid("the endpoint is not https://, and would be sent a token that anybody can read")
	case sas != "":
		c, err = container.NewClientWithNoCredential(at+"?"+strings.TrimPrefix(sas, "?"), opts)
		return c, "shared access signature", err
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, "", err
	}
	c, err = container.NewClient(at, credential, opts)
	return c, "default Azure credential", err
}

func (a *azure) bucket() *cdk.Bucket { return a.blob }

func (a *azure) list(prefix string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var in *container.ListBlobsHierarchyOptions
		if !as(&in) {
			return errNoAs
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
			i.version = tag(string(*blob.Properties.ETag))
		}
		return i
	}
	return item{key: o.Key, dir: o.IsDir, size: o.Size, mtime: o.ModTime}
}

// read goes past the portable library, which cannot be kept from escaping keys.
func (a *azure) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	opts := &azblob.DownloadStreamOptions{Range: azblob.HTTPRange{Offset: off, Count: n}}
	if match := azcore.ETag(quoted(version)); match != "" {
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

func (a *azure) version(h http.Header) string { return tag(h.Get("ETag")) }

func (a *azure) failure(err error) (code, text string) {
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return e.ErrorCode, http.StatusText(e.StatusCode)
	}
	if e, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok && e.RawResponse != nil {
		return "AuthenticationFailed", e.RawResponse.Status
	}
	return "", ""
}

func (a *azure) renew(time.Time) {}

func (a *azure) identity(context.Context) (string, error) { return a.signing, nil }
